"""The data of a request's decisions as one compact blob: for people ("why there?") and for training.

The blob is JSON without names: rows in the order of `PREDICTION_FIELDS` and `LOAD_FEATURES`. Old blobs must stay readable:
when these change, `VERSION` must change (a test has them as they are).

    {"v": 2, "prefix": [hash, ...], "f": [head and tail, how many are head, counts] | null, "n": choices,
     "d": [[policy, after_s, chosen, propensity, left_out,
            [[instance, model, score, reason, [prediction fields] | null, [load features] | null], ...]], ...]}
"""

from __future__ import annotations

from array import array
from binascii import a2b_base64
from collections.abc import Sequence
from sys import byteorder
from typing import Any, TypedDict

import orjson

from predictors.kernels import ids_as_base64
from router.core.deciding import Decided
from router.core.state import LOAD_FEATURES, load_features
from router.core.types import Considered, Decision, PromptFeatures
from router.store.records import PREDICTION_FIELDS, RequestRecord, prediction_values

VERSION = 2
#: The number of `PREDICTION_FIELDS` in blobs of each version.
_FIELDS_OF = {1: 13, 2: 15}
MAX_BLOB_BYTES = 16_384
MAX_PREFIX_HASHES = 128
# Encoding hundreds of candidates to drop most of them would cost more than the request.
_MAX_CANDIDATES = 96
_UINT64 = 2**64 - 1

_Row = tuple[Any, ...]


class KeptCandidate(TypedDict):
    """One candidate of a decision: all prediction fields and load features, by name."""

    instance: str
    model: str
    score: float | None
    chosen: bool
    reason: str | None
    predicted: dict[str, float | None] | None
    load: dict[str, float | None] | None


class KeptDecision(TypedDict):
    """One decision. `decided_after_s` is from the arrival; `candidates_left_out` were dropped by the size limit."""

    policy: str
    decided_after_s: float | None
    propensity: float | None
    candidates: list[KeptCandidate]
    candidates_left_out: int


class Explanation(TypedDict):
    """All decisions of a request, in order."""

    decisions: list[KeptDecision]
    prefix: list[int]
    features: PromptFeatures | None
    choices: int


def encode(record: RequestRecord, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
    """The blob of a record, at most `max_bytes` long; None if nothing was decided. Above the limit the candidates with the
    worst scores are left out, never the chosen one. The reasons are made by a policy, so this may raise anything."""
    rows = _rows(record, _MAX_CANDIDATES)
    if not rows:
        return None
    prefix: Sequence[int] = record.prefix
    if prefix:
        prefix = [part & _UINT64 for part in prefix[:MAX_PREFIX_HASHES]]
    features = None if record.features is None else _packed(record.features)
    while True:
        blob = orjson.dumps({"v": VERSION, "prefix": prefix, "f": features, "n": record.choices, "d": rows})
        if len(blob) <= max_bytes:
            return blob
        most = max(len(row[5]) for row in rows)
        if most <= 1:
            if not prefix:
                return None
            prefix = prefix[: len(prefix) // 2]
        else:
            rows = _rows(record, max(1, min(most * max_bytes // len(blob), most - 1)))


def _rows(record: RequestRecord, keep: int) -> list[_Row]:
    """The decisions as they stand in the blob, with at most `keep` candidates each."""
    found: list[_Row] = []
    arrived_at = record.arrived_at
    for decided in record.decisions:
        if not isinstance(decided, Decided):
            found.append(_decision_row(decided, arrived_at, keep))
            continue
        options, choice, at_s, loads = decided.options, decided.choice, decided.at_s, decided.loads
        if decided.busy or decided.passed_over or not len(options) == len(loads) <= keep:
            found.append(_decision_row(decided.decision, arrived_at, keep))
            continue
        rows = []
        for option, score, reason, load in zip(options, choice.scores, choice.reasons, loads, strict=True):
            candidate, prediction = option.candidate, option.prediction
            if prediction is None:
                values = None
            else:
                values = (
                    record.predicted if prediction is record.prediction else prediction_values(prediction)
                )
            features = load_features(load, at_s)
            rows.append((candidate.instance, candidate.model, score, reason, values, features))
        after_s = None if arrived_at is None else at_s - arrived_at
        found.append((decided.policy, after_s, choice.index, choice.propensity, 0, rows))
    return found


def _decision_row(decision: Decision, arrived_at: float | None, keep: int) -> _Row:
    considered, loads, chosen = decision.considered, decision.loads, decision.chosen
    kept: Sequence[int] = range(len(considered))
    if len(considered) > keep:
        kept = sorted(kept, key=lambda i: (i != chosen, *_rank(considered[i])))[:keep]
        chosen = None if chosen is None else 0  # the chosen one ranks first
    known_loads = len(loads)
    rows = []
    for i in kept:
        option = considered[i]
        candidate, prediction = option.candidate, option.prediction
        rows.append(
            (
                candidate.instance,
                candidate.model,
                option.score,
                option.reason,
                None if prediction is None else prediction_values(prediction),
                loads[i] if i < known_loads else None,
            )
        )
    after_s = None if arrived_at is None else decision.at_s - arrived_at
    return decision.policy, after_s, chosen, decision.propensity, len(considered) - len(rows), rows


def _rank(option: Considered) -> tuple[bool, float]:
    """Best first; candidates without a score last."""
    return option.score is None, option.score or 0.0


def decode(blob: bytes) -> Explanation:
    """Read a blob. Raises ValueError for an unknown version and for a damaged blob."""
    document = orjson.loads(blob)
    try:
        fields = _FIELDS_OF.get(document["v"])
        if fields is None:
            raise ValueError(f"explanation of an unknown version {document['v']}")
        features = document.get("f")
        return {
            "decisions": [_kept_decision(row, fields) for row in document["d"]],
            "prefix": document["prefix"],
            "features": None if features is None else _unpacked(*features),
            "choices": document.get("n", 1),
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("a damaged explanation") from error


def _packed(features: PromptFeatures) -> tuple[str, int, tuple[int, ...]]:
    """Word ids in base64: two bytes each and a third more. As JSON numbers they would take three times that."""
    return ids_as_base64(features.head, features.tail), len(features.head), features.counts


def _unpacked(packed: str, head: int, counts: Sequence[int]) -> PromptFeatures:
    ids = array("H", a2b_base64(packed))
    if byteorder == "big":
        ids.byteswap()
    return PromptFeatures(tuple(ids[:head]), tuple(ids[head:]), tuple(counts))


def kept(decision: Decision, arrived_at: float | None = None) -> KeptDecision:
    """A decision that is not stored (a dry run), in the same form."""
    row = _decision_row(decision, arrived_at, max(1, len(decision.considered)))
    return _kept_decision(row, len(PREDICTION_FIELDS))


def _kept_decision(row: Sequence[Any], fields: int) -> KeptDecision:
    policy, after_s, chosen, propensity, left_out, rows = row
    candidates: list[KeptCandidate] = [
        {
            "instance": instance,
            "model": model,
            "score": score,
            "chosen": place == chosen,
            "reason": reason,
            "predicted": None if prediction is None else _predicted(prediction, fields),
            "load": None if load is None else dict(zip(LOAD_FEATURES, load, strict=True)),
        }
        for place, (instance, model, score, reason, prediction, load) in enumerate(rows)
    ]
    return {
        "policy": policy,
        "decided_after_s": after_s,
        "propensity": propensity,
        "candidates": candidates,
        "candidates_left_out": left_out,
    }


def _predicted(values: Sequence[float | None], fields: int) -> dict[str, float | None]:
    """Fields by name; those that an older version lacks are None."""
    known: dict[str, float | None] = dict.fromkeys(PREDICTION_FIELDS)
    known.update(zip(PREDICTION_FIELDS[:fields], values, strict=True))
    return known
