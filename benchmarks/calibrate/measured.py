"""Measured requests, level by level, and the file that holds them.

The measurement form: JSON lines. The first is `{"headway_measurement": 1}` with whatever else its writer
tells; every other line is a request or a sample of the engine's state:

    {"level": "2", "arrival_s": 0.51, "prompt_tokens": 96, "output_tokens": 64, "ttft_s": 0.08, "e2e_s": 1.2}
    {"level": "2", "t_s": 1.0, "running": 3, "waiting": 0, "gen_tok_per_s": 88.1, "prompt_tok_per_s": 51.0, "kv_usage": 0.02}

Times are seconds; arrivals and samples of a level share one clock. `output_tokens`, `ttft_s` and `e2e_s` may
be null: such a request loads the engine in the simulation and is not compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.measures import mean_rate, quantile

MEASUREMENT_KEY = "headway_measurement"
_NEEDED = ("arrival_s", "prompt_tokens")


class CalibrationError(ValueError):
    """Something is wrong with the measurements or the options; one line for a person."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as a client saw it. `ttft_s` and `e2e_s` count from `arrival_s`; None is unknown.

    `replica` is the engine that served it, where several stand behind one address; `prefix` are ids of the
    prompt's leading blocks (see `backends.engine.Sequence`).
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int | None
    ttft_s: float | None
    e2e_s: float | None
    replica: int = 0
    prefix: tuple[int, ...] = ()

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None where that is unknown or rests on few tokens."""
        if self.ttft_s is None or self.e2e_s is None or not self.output_tokens or self.output_tokens < 5:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class State:
    """What an engine told of itself at one instant; `kv_usage` is a share, 0..1."""

    t_s: float
    running: float
    waiting: float
    gen_tok_per_s: float | None = None
    prompt_tok_per_s: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """One run at one load. Requests are in order of arrival."""

    name: str
    requests: tuple[Measured, ...]
    states: tuple[State, ...] = ()

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second of the requests that were measured; 0 if that cannot be told."""
        return mean_rate([each.arrival_s for each in self.requests if each.e2e_s is not None]) or 0.0

    def complete(self) -> Level:
        """The same level with unknown output lengths set to the median of the known ones, and those
        requests' times unknown. A CalibrationError where none is known."""
        known = sorted(each.output_tokens for each in self.requests if each.output_tokens is not None)
        middle = quantile(known, 0.5)
        if middle is None:
            raise CalibrationError(f"level {self.name}: output_tokens is null in every request")
        requests = (
            each
            if each.output_tokens is not None
            else replace(each, output_tokens=round(middle), ttft_s=None, e2e_s=None)
            for each in self.requests
        )
        return replace(self, requests=tuple(sorted(requests, key=lambda each: each.arrival_s)))


def read_file(path: Path) -> list[Level]:
    """The levels of one file in the measurement form. A CalibrationError names file and line."""
    requests: dict[str, list[Measured]] = defaultdict(list)
    states: dict[str, list[State]] = defaultdict(list)
    for number, data in json_lines(path):
        if number == 1:
            if data.get(MEASUREMENT_KEY) != 1:
                raise CalibrationError(f'{path}, line 1: expected {{"{MEASUREMENT_KEY}": 1}}')
            continue
        where = f"{path}, line {number}"
        level = data.get("level")
        if not isinstance(level, str) or not level:
            raise CalibrationError(f"{where}: level must be a non-empty text")
        if "t_s" in data:
            states[level].append(_state(data, where))
        else:
            requests[level].append(request_of(data, where))
    if not requests:
        raise CalibrationError(f"{path}: holds no request")
    return [Level(name, tuple(rows), tuple(states[name])).complete() for name, rows in requests.items()]


def json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and object of each line. A CalibrationError for what is no JSON object."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                data = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise CalibrationError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
            if not isinstance(data, dict):
                raise CalibrationError(f"{path}, line {number}: must be a JSON object")
            yield number, data


def request_of(data: Mapping[str, Any], where: str) -> Measured:
    """A request from its JSON form. A CalibrationError that starts with `where`."""
    for name in _NEEDED:
        if data.get(name) is None:
            raise CalibrationError(f"{where}: {name} is missing")
    arrival_s = _number(data, "arrival_s", where)
    ttft_s, e2e_s = _number(data, "ttft_s", where), _number(data, "e2e_s", where)
    if ttft_s is not None and e2e_s is not None and (ttft_s <= 0 or e2e_s < ttft_s):
        raise CalibrationError(f"{where}: expected 0 < ttft_s <= e2e_s")
    assert arrival_s is not None  # noqa: S101 (checked above)
    return Measured(
        arrival_s,
        _count(data, "prompt_tokens", where) or 1,
        _count(data, "output_tokens", where),
        ttft_s,
        e2e_s,
    )


def _state(data: Mapping[str, Any], where: str) -> State:
    values = {name: _number(data, name, where) for name in State.__dataclass_fields__}
    for name in ("t_s", "running", "waiting"):
        if values[name] is None:
            raise CalibrationError(f"{where}: {name} is missing")
    return State(**values)  # type: ignore[arg-type]  # those that must be there are


def _number(data: Mapping[str, Any], name: str, where: str) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise CalibrationError(f"{where}: {name} must be a number of at least 0 or null")
    return float(value)


def _count(data: Mapping[str, Any], name: str, where: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CalibrationError(f"{where}: {name} must be a whole number of at least 1")
    return value


def write_file(path: Path, levels: Sequence[Level], details: Mapping[str, Any]) -> None:
    """Write levels in the measurement form, one replica's requests only."""
    with path.open("wb") as out:
        out.write(orjson.dumps({MEASUREMENT_KEY: 1, **details}) + b"\n")
        for level in levels:
            for each in level.requests:
                row = {
                    name: value for name, value in asdict(each).items() if name not in ("replica", "prefix")
                }
                out.write(orjson.dumps({"level": level.name, **row}) + b"\n")
            for state in level.states:
                out.write(orjson.dumps({"level": level.name, **asdict(state)}) + b"\n")
