"""Observations: what learners learn from, as small values with a text form that replicas exchange.

An observation is a dataclass with slots that its learner defines (`predictors.online.learner`). It is not changed once it is
made; a frozen dataclass would take three times as long to make. Its fields are numbers, names of the fleet, and hashes;
never text of a prompt. A field of type `Annotated[type, check]` is read with that check. An
observation that depends on trained models has a method `for_other_models`, which returns what remains of it where other
artifacts serve: the observation itself, a part of it, or None.

A message is JSON: `{"v": VERSION, "by": artifacts, "observations": [[kind, field, ...], ...]}`. The reader trusts nothing:
it ignores a message of another version, and an observation with a wrong number of fields or a field out of bounds.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import orjson

from predictors.kernels.length_bins import BINS
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.model_weights import PREDICTIONS

VERSION = 3
_MOST_TEXT = 300
_MOST_ITEMS = 4096

#: Any observation.
Observation = Any
#: Returns the value of a field, or raises ValueError or TypeError.
Check = Callable[[Any], Any]


def within(kind: type, least: float, most: float) -> Check:
    """The check of a finite number from `least` to `most`."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
            raise ValueError
        if not isfinite(value) or not least <= value <= most:
            raise ValueError
        return value

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _items(each: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise ValueError
        return tuple(each(item) for item in value)

    return check


def _quantiles(value: Any) -> tuple[float, ...]:
    found: tuple[float, ...] = _items(within(float, -30.0, 30.0))(value)
    if len(found) not in (0, len(PREDICTIONS) * len(TAUS)):
        raise ValueError
    return found


def _shares(value: Any) -> np.ndarray:
    shares = np.frombuffer(b64decode(value, validate=True), "<f2").astype(float)
    if shares.shape != (BINS,) or not np.isfinite(shares).all() or shares.min() < 0.0 or shares.sum() <= 0.0:
        raise ValueError
    return shares


def _key(value: Any) -> tuple[str, str]:
    instance, model = value
    return _text(instance), _text(model)


#: An instance, and a model that it serves.
CandidateKey = Annotated[tuple[str, str], _key]
Seconds = Annotated[float, within(float, 1e-9, 1e7)]
Tokens = Annotated[float, within(float, 0.0, 1e9)]
Log = Annotated[float, within(float, -30.0, 30.0)]
Share = Annotated[float, within(float, 0.0, 1.0)]
Count = Annotated[int, within(int, 0, 10**9)]
Hash = Annotated[int, within(int, 0, 2**64)]
#: Quantiles at TAUS: those that served, the physical estimate's and the latency model's, one after another. Empty if
#: the latency model did not predict.
Quantiles = Annotated[tuple[float, ...], _quantiles]
#: The length model's shares of the length bins.
LengthShares = Annotated[np.ndarray, _shares]


class Message(NamedTuple):
    """The parsed message: the artifacts of the sender, its observations, and the number of unreadable ones."""

    by: str
    observations: list[Observation]
    ignored: int


class Codec:
    """Writes and reads observations of the given kinds. The name of a class is its name in a message."""

    def __init__(self, kinds: Iterable[type[Observation]]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._checks = {name: _checks_of(kind) for name, kind in self._kinds.items()}

    def encode(self, by: str, observations: Iterable[Observation]) -> bytes:
        """A message. `by` names the artifacts in use where the observations were made."""
        rows = [
            [kind := type(each).__name__, *(getattr(each, field) for field in self._checks[kind])]
            for each in observations
        ]
        return orjson.dumps({"v": VERSION, "by": by, "observations": rows}, default=_plain)

    def decode(self, message: bytes) -> Message:
        """Read all valid parts of a message."""
        try:
            content = orjson.loads(message)
            version, by, rows = content["v"], content["by"], content["observations"]
        except (ValueError, KeyError, TypeError):
            return Message("", [], 1)
        if version != VERSION or not isinstance(by, str) or not isinstance(rows, list):
            return Message("", [], 1)
        observations, ignored = [], 0
        for row in rows:
            try:
                observations.append(self._observation(row))
            except (ValueError, TypeError, KeyError):
                ignored += 1
        return Message(by, observations, ignored)

    def _observation(self, row: Any) -> Observation:
        name, *fields = row
        checks = self._checks[name].values()
        return self._kinds[name](*[check(field) for check, field in zip(checks, fields, strict=True)])


def for_other_models(observation: Observation) -> Observation | None:
    """The part of an observation that is valid if other artifacts serve than where it was made."""
    part = getattr(observation, "for_other_models", None)
    return observation if part is None else part()


def _plain(value: object) -> str:
    if isinstance(value, np.ndarray):  # half precision is enough for lengths
        return b64encode(value.astype("<f2").tobytes()).decode()
    raise TypeError(type(value).__name__)


def _checks_of(kind: type[Observation]) -> dict[str, Check]:
    """By field, in order."""
    return {name: _check_of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _check_of(hint: Any) -> Check:
    plain: dict[Any, Check] = {str: _text, bool: _flag}
    if hint in plain:
        return plain[hint]
    if get_origin(hint) is Annotated:
        found: Check = get_args(hint)[1]
        return found
    if get_origin(hint) is tuple:
        return _items(_check_of(get_args(hint)[0]))
    (of,) = (each for each in get_args(hint) if each is not type(None))
    check = _check_of(of)
    return lambda value: None if value is None else check(value)
