"""What a request's decisions saw, as one compact blob: for people ("why there?") and as the training set.

The blob is JSON without names: rows in the order of the tuples below. Those are spelled out, not taken from
the classes, because old blobs must stay readable; when they change, so must `VERSION`.

    {"v": 1, "prefix": [hash, ...],
     "d": [[policy, after_s, chosen, propensity, left_out,
            [[instance, model, score, reason, [prediction fields] | null, [load features] | null], ...]], ...]}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypedDict

import orjson

from router.core.events import Considered, Decision
from router.core.types import Prediction
from router.store.records import RequestRecord

VERSION = 1
PREDICTION_FIELDS = (
    "output_tokens_p50",
    "output_tokens_p90",
    "output_tokens_mean",
    "ttft_s_p50",
    "ttft_s_p95",
    "tpot_s",
    "e2e_s_mean",
    "e2e_s_p50",
    "e2e_s_p95",
    "quality",
    "cost_usd",
    "p_miss",
    "engine_ttft_s",
)
LOAD_FIELDS = (
    "in_flight",
    "awaiting_first_token",
    "pending_prefill_tokens",
    "context_tokens",
    "running",
    "waiting",
    "kv_usage",
    "report_age_s",
)
MAX_BLOB_BYTES = 16_384
MAX_PREFIX_HASHES = 128
# Encoding hundreds of candidates only to throw most away would cost more than the request.
_MAX_CANDIDATES = 96
_UINT64 = 2**64 - 1

_prediction_values: Callable[[Prediction], tuple[Any, ...]] = attrgetter(*PREDICTION_FIELDS)


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
    """One decision. `decided_after_s` is from the arrival; `candidates_left_out` were cut by the size cap."""

    policy: str
    decided_after_s: float | None
    propensity: float | None
    candidates: list[KeptCandidate]
    candidates_left_out: int


class Explanation(TypedDict):
    """All decisions of a request, in order."""

    decisions: list[KeptDecision]
    prefix: list[int]


def encode(record: RequestRecord, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
    """The blob of a record, at most `max_bytes` long; None when nothing was decided. Over the cap, the
    candidates with the worst scores are left out, never the chosen one."""
    if not record.decisions:
        return None
    prefix: Sequence[int] = record.prefix
    if prefix:
        prefix = [part & _UINT64 for part in prefix[:MAX_PREFIX_HASHES]]
    keep = _MAX_CANDIDATES
    while True:
        rows = [_decision_row(decision, record.arrived_at, keep) for decision in record.decisions]
        blob = orjson.dumps({"v": VERSION, "prefix": prefix, "d": rows})
        if len(blob) <= max_bytes:
            return blob
        if keep == 1:
            if not prefix:
                return None
            prefix = prefix[: len(prefix) // 2]
        else:
            most = max(len(row[5]) for row in rows)
            keep = max(1, min(most * max_bytes // len(blob), most - 1))


def _decision_row(decision: Decision, arrived_at: float | None, keep: int) -> tuple[Any, ...]:
    considered, loads, chosen = decision.considered, decision.loads, decision.chosen
    kept: Sequence[int] = range(len(considered))
    if len(considered) > keep:
        kept = sorted(kept, key=lambda i: (i != chosen, *_rank(considered[i])))[:keep]
        chosen = 0  # the chosen one ranks first
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
                None if prediction is None else _prediction_values(prediction),
                loads[i] if i < known_loads else None,
            )
        )
    after_s = None if arrived_at is None else decision.at_s - arrived_at
    return decision.policy, after_s, chosen, decision.propensity, len(considered) - len(rows), rows


def _rank(option: Considered) -> tuple[bool, float]:
    """Best first; candidates without a score last."""
    return option.score is None, option.score or 0.0


def decode(blob: bytes) -> Explanation:
    """Read a blob. A version that this code does not know is a ValueError."""
    document = orjson.loads(blob)
    if document["v"] != VERSION:
        raise ValueError(f"explanation of an unknown version {document['v']}")
    return {"decisions": [_kept_decision(*row) for row in document["d"]], "prefix": document["prefix"]}


def kept(decision: Decision, arrived_at: float | None = None) -> KeptDecision:
    """A decision that was not stored (a dry run) in the same form."""
    return _kept_decision(*_decision_row(decision, arrived_at, max(1, len(decision.considered))))


def _kept_decision(
    policy: str,
    after_s: float | None,
    chosen: int,
    propensity: float | None,
    left_out: int,
    rows: Sequence[Sequence[Any]],
) -> KeptDecision:
    return {
        "policy": policy,
        "decided_after_s": after_s,
        "propensity": propensity,
        "candidates": [_kept_candidate(*row, chosen=i == chosen) for i, row in enumerate(rows)],
        "candidates_left_out": left_out,
    }


def _kept_candidate(
    instance: str,
    model: str,
    score: float | None,
    reason: str | None,
    prediction: Sequence[float | None] | None,
    load: Sequence[float | None] | None,
    *,
    chosen: bool,
) -> KeptCandidate:
    return {
        "instance": instance,
        "model": model,
        "score": score,
        "chosen": chosen,
        "reason": reason,
        "predicted": None if prediction is None else dict(zip(PREDICTION_FIELDS, prediction, strict=True)),
        "load": None if load is None else dict(zip(LOAD_FIELDS, load, strict=True)),
    }
