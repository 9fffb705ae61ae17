"""Observations: what learners learn from, as small values with a text form that replicas exchange.

An observation is a dataclass with slots that its learner defines (`predictors.online.learner`). It is not changed once it is
made; a frozen dataclass would take three times as long to make. Its fields are numbers, names of the fleet, and hashes;
never text of a prompt. Pydantic checks the types of a received observation, strictly, and the bounds in their annotations. An
observation that depends on trained models has a method `for_other_models`, which returns what remains of it where other
artifacts serve: the observation itself, a part of it, or None.

A message is JSON: `{"v": VERSION, "by": artifacts, "observations": [[kind, field, ...], ...]}`. The reader trusts nothing:
it ignores a message of another version, and an observation with a wrong number of fields or a field out of bounds.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Hashable, Iterable
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
import orjson
from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, TypeAdapter

from predictors.kernels.length_bins import BINS
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.quantiles import PREDICTIONS

VERSION = 3
_STRICT = ConfigDict(strict=True, str_max_length=300)
T = TypeVar("T")

#: Any observation.
Observation = Any


def _of_all_predictions(quantiles: tuple[float, ...]) -> tuple[float, ...]:
    if len(quantiles) not in (0, len(PREDICTIONS) * len(TAUS)):
        raise ValueError("quantiles of other predictions")
    return quantiles


def _shares(value: Any) -> np.ndarray:
    shares = np.frombuffer(b64decode(value, validate=True), "<f2").astype(float)
    if shares.shape != (BINS,) or not np.isfinite(shares).all() or shares.min() < 0.0 or shares.sum() <= 0.0:
        raise ValueError("not the shares of a distribution")
    return shares


#: Values in a tuple, which is a list in a message.
Several = Annotated[tuple[T, ...], Field(strict=False, max_length=4096)]
#: An instance, and a model that it serves.
CandidateKey = Annotated[tuple[str, str], Field(strict=False)]
Seconds = Annotated[float, Field(ge=1e-9, le=1e7)]
Tokens = Annotated[float, Field(ge=0, le=1e9)]
Log = Annotated[float, Field(ge=-30, le=30)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Hash = Annotated[int, Field(ge=0, le=2**64)]
#: Quantiles at TAUS: those that served, the physical estimate's and the latency model's, one after another. Empty if
#: the latency model did not predict.
Quantiles = Annotated[Several[Log], AfterValidator(_of_all_predictions)]
#: The length model's shares of the length bins.
LengthShares = Annotated[np.ndarray, PlainValidator(_shares)]


class Message(NamedTuple):
    """The parsed message: the artifacts of the sender, its observations, and the number of unreadable ones."""

    by: str
    observations: list[Observation]
    ignored: int


class Codec:
    """Writes and reads observations of the given kinds. The name of a class is its name in a message."""

    def __init__(self, kinds: Iterable[type[Observation]]) -> None:
        self._kinds: dict[str, Any] = {kind.__name__: kind for kind in kinds}

    def encode(self, by: str, observations: Iterable[Observation]) -> bytes:
        """A message. `by` names the artifacts in use where the observations were made."""
        rows = [
            [type(each).__name__, *(getattr(each, field) for field in each.__slots__)]
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
                name, *fields = row
                kind = self._kinds[name]
                observations.append(kind(*_fields_of(kind).validate_python(tuple(fields))))
            except (ValueError, TypeError, KeyError):
                ignored += 1
        return Message(by, observations, ignored)


@cache
def _fields_of(kind: Hashable) -> TypeAdapter[tuple[Any, ...]]:
    hints = get_type_hints(kind, include_extras=True).values()
    fields: Any = GenericAlias(tuple, tuple(hints))
    return TypeAdapter(fields, config=_STRICT)


def for_other_models(observation: Observation) -> Observation | None:
    """The part of an observation that is valid if other artifacts serve than where it was made."""
    part = getattr(observation, "for_other_models", None)
    return observation if part is None else part()


def _plain(value: object) -> str:
    if isinstance(value, np.ndarray):  # half precision is enough for lengths
        return b64encode(value.astype("<f2").tobytes()).decode()
    raise TypeError(type(value).__name__)
