"""What one replica of the router learned, for the others to learn it too: small values with a text form.

A message is JSON: `{"v": VERSION, "by": artifacts, "lessons": [[kind, field, ...], ...]}`. It holds numbers, names of
the fleet, and hashes; no text of a prompt. Who reads it takes nothing on trust: a message of another version, and a
lesson with a field too few or out of its bounds, is no lesson (`read` counts them).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import orjson

from predictors.analytic.physical import TPOT_STRATA, TTFT_STRATA
from predictors.learned.latency.features import TAUS
from predictors.online.length import BINS

VERSION = 1
#: Bounds of what is read: (least, greatest).
Seconds = Annotated[float, 1e-9, 1e7]
Tokens = Annotated[float, 0.0, 1e9]
Log = Annotated[float, -30.0, 30.0]
Share = Annotated[float, 0.0, 1.0]
Count = Annotated[int, 0, 10**9]
Hash = Annotated[int, 0, 2**64]
_MOST_TEXT = 300
_MOST_ITEMS = 4096


class Sent(NamedTuple):
    """An attempt went out for which this was expected (`predictors.learned.latency.features.Estimate`)."""

    instance: str
    model: str
    ttft_s: Seconds
    ttft_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens
    step_s: Seconds


class Began(NamedTuple):
    """Its first token came, `waited_s` after it went out."""

    instance: str
    model: str
    waited_s: Seconds
    ttft_s: Seconds
    ttft_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens


class Finished(NamedTuple):
    """A whole answer came, with so many seconds a token (None: one token)."""

    instance: str
    model: str
    output_tokens: Count
    tpot_s: Seconds | None
    expected_tpot_s: Seconds
    tpot_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens


class Lost(NamedTuple):
    """An attempt gave no whole answer."""

    instance: str
    model: str
    waited_s: Seconds
    decoding: bool


class Ttft(NamedTuple):
    """A log error of the physical TTFT, beside what had been foretold: the physical median and 95 % quantile, and the
    latency model's quantiles where it was asked and had seen enough (else empty)."""

    instance: str
    model: str
    stratum: Annotated[int, 0, TTFT_STRATA - 1]
    residual: Log
    median: Log
    p95: Log
    quantiles: tuple[Log, ...]


class Corrected(NamedTuple):
    """A log error of TTFT that was learned as `taken`, before the first token came, is another one."""

    instance: str
    model: str
    stratum: Annotated[int, 0, TTFT_STRATA - 1]
    taken: Log
    residual: Log


class Tpot(NamedTuple):
    """A log error of the physical TPOT, `raw_s` before shrinking; `quantiles` as in `Ttft`."""

    instance: str
    model: str
    stratum: Annotated[int, 0, TPOT_STRATA - 1]
    residual: Log
    raw_s: Seconds
    actual_s: Seconds
    quantiles: tuple[Log, ...]


class Tree(NamedTuple):
    """A log error of a boosted forest: of TTFT (`time` 0) or TPOT (1), with or without a queue."""

    instance: str
    model: str
    time: Annotated[int, 0, 1]
    queued: bool
    error: Log


class Prompt(NamedTuple):
    """An engine's own count of a prompt, beside the router's estimate."""

    instance: str
    model: str
    estimated_tokens: Count
    engine_tokens: Count


class Answer(NamedTuple):
    """An answer's length; `predicted` are the length model's shares of the bins (None: not asked)."""

    instance: str
    model: str
    output_tokens: Count
    max_tokens: Count | None
    choices: Annotated[int, 1, 10**6]
    predicted: np.ndarray | None


class Held(NamedTuple):
    """The instance holds a prompt with these leading blocks, and so many tokens of a session."""

    instance: str
    prefix: tuple[Hash, ...]
    session: str | None
    tokens: Tokens


class Judged(NamedTuple):
    """Feedback on an answer of `model` to a prompt with these features (`router.core.types.PromptFeatures`)."""

    model: str
    head: tuple[Count, ...]
    tail: tuple[Count, ...]
    counts: tuple[Count, ...]
    quality: Share


Lesson = (
    Sent | Began | Finished | Lost | Ttft | Corrected | Tpot | Tree | Prompt | Answer | Held | Judged
)  # fmt: skip
_KINDS: dict[str, type[Lesson]] = {kind.__name__.lower(): kind for kind in get_args(Lesson)}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class Message(NamedTuple):
    """What was read: by which artifacts, the lessons, and how many were none."""

    by: str
    lessons: list[Lesson]
    ignored: int


def write(by: str, lessons: Iterable[Lesson]) -> bytes:
    """A message. `by` names the artifacts in use where they were learned."""
    told = [[_NAMES[type(lesson)], *lesson] for lesson in lessons]
    return orjson.dumps({"v": VERSION, "by": by, "lessons": told}, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, np.ndarray):  # half precision is finer than lengths are known
        return b64encode(value.astype("<f2").tobytes()).decode()
    raise TypeError(type(value).__name__)


def read(message: bytes) -> Message:
    """Whatever of a message can be read."""
    try:
        content = orjson.loads(message)
        version, by, told = content["v"], content["by"], content["lessons"]
    except (ValueError, KeyError, TypeError):
        return Message("", [], 1)
    if version != VERSION or not isinstance(by, str) or not isinstance(told, list):
        return Message("", [], 1)
    lessons, ignored = [], 0
    for each in told:
        try:
            lessons.append(_lesson(each))
        except (ValueError, TypeError, KeyError):
            ignored += 1
    return Message(by, lessons, ignored)


def _lesson(told: Any) -> Lesson:
    kind, *fields = told
    checks = _CHECKS[kind]
    return _KINDS[kind](*[check(field) for check, field in zip(checks, fields, strict=True)])


# --- fields: each check gives the value, or raises ValueError or TypeError --------------------------------
_Check = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _shares(value: Any) -> np.ndarray:
    shares = np.frombuffer(b64decode(value, validate=True), "<f2").astype(float)
    if shares.shape != (BINS,) or not np.isfinite(shares).all() or shares.min() < 0.0 or shares.sum() <= 0.0:
        raise ValueError
    return shares


def _number(kind: type, least: float, most: float) -> _Check:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
            raise ValueError
        if not isfinite(value) or not least <= value <= most:
            raise ValueError
        return value

    return check


def _many(each: _Check) -> _Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise ValueError
        return tuple(each(item) for item in value)

    return check


def _or_none(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _check_of(hint: Any) -> _Check:
    plain: dict[Any, _Check] = {str: _text, bool: _flag, np.ndarray: _shares}
    if hint in plain:
        return plain[hint]
    if get_origin(hint) is Annotated:
        return _number(*get_args(hint))
    if get_origin(hint) is tuple:
        return _many(_check_of(get_args(hint)[0]))
    (of,) = (each for each in get_args(hint) if each is not type(None))
    return _or_none(_check_of(of))


def _quantiles(value: Any) -> tuple[float, ...]:
    found: tuple[float, ...] = _many(_number(float, -30.0, 30.0))(value)
    if len(found) not in (0, len(TAUS)):
        raise ValueError
    return found


_CHECKS: dict[str, list[_Check]] = {
    name: [
        _quantiles if field == "quantiles" else _check_of(hint)
        for field, hint in get_type_hints(kind, include_extras=True).items()
    ]
    for name, kind in _KINDS.items()
}
