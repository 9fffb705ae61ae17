"""Measured requests, level by level, and the file that holds them.

The measurement form: JSON lines. The first is `{"headway_measurement": 1}` with whatever else its writer
tells; every other line is a request or a sample of the engine's state:

    {"level": "2", "arrival_s": 0.51, "prompt_tokens": 96, "output_tokens": 64, "ttft_s": 0.08, "e2e_s": 1.2}
    {"level": "2", "t_s": 1.0, "running": 3, "waiting": 0, "gen_tok_per_s": 88.1, "prompt_tok_per_s": 51.0, "kv_usage": 0.02}

Times are seconds; arrivals and samples of a level share one clock. `output_tokens`, `ttft_s` and `e2e_s` may
be null: such a request loads the engine in the simulation and is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from pydantic import TypeAdapter

from benchmarks.measures import mean_rate
from benchmarks.workloads.format import WorkloadError, checked
from benchmarks.workloads.published import json_lines
from router.config.fields import Count, NotNegative

MEASUREMENT_KEY = "headway_measurement"


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as a client saw it. `ttft_s` and `e2e_s` count from `arrival_s`; None is unknown.

    `replica` is the engine that served it, where several stand behind one address; `prefix` are ids of the
    prompt's leading blocks (see `backends.engine.Sequence`).
    """

    arrival_s: NotNegative
    prompt_tokens: Count
    output_tokens: Count | None = None
    ttft_s: NotNegative | None = None
    e2e_s: NotNegative | None = None
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
    """What an engine reported at one instant; `kv_usage` is a share, 0..1."""

    t_s: NotNegative
    running: NotNegative
    waiting: NotNegative
    gen_tok_per_s: NotNegative | None = None
    prompt_tok_per_s: NotNegative | None = None
    kv_usage: NotNegative | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """One run at one load. Requests are in order of arrival."""

    name: str
    requests: tuple[Measured, ...]
    states: tuple[State, ...] = ()

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second of the requests that were measured; 0 if it is unknown."""
        return mean_rate([each.arrival_s for each in self.requests if each.e2e_s is not None]) or 0.0

    def complete(self) -> Level:
        """The same level with unknown output lengths set to the median of the known ones, and those
        requests' times unknown. A WorkloadError where none is known."""
        known = [each.output_tokens for each in self.requests if each.output_tokens is not None]
        if not known:
            raise WorkloadError(f"level {self.name}: output_tokens is null in every request")
        middle = round(median(known))
        requests = (
            each
            if each.output_tokens is not None
            else replace(each, output_tokens=middle, ttft_s=None, e2e_s=None)
            for each in self.requests
        )
        return replace(self, requests=tuple(sorted(requests, key=lambda each: each.arrival_s)))


def read_file(path: Path) -> list[Level]:
    """The levels of one file in the measurement form. A WorkloadError names file and line."""
    requests: dict[str, list[Measured]] = defaultdict(list)
    states: dict[str, list[State]] = defaultdict(list)
    for number, data in json_lines(path):
        if number == 1:
            if data.get(MEASUREMENT_KEY) != 1:
                raise WorkloadError(f'{path}, line 1: expected {{"{MEASUREMENT_KEY}": 1}}')
            continue
        where = f"{path}, line {number}"
        level = data.get("level")
        if not isinstance(level, str) or not level:
            raise WorkloadError(f"{where}: level: must be a text that is not empty")
        if "t_s" in data:
            states[level].append(checked(_STATES.validate_python, data, where))
        else:
            requests[level].append(request_of(data, where))
    if not requests:
        raise WorkloadError(f"{path}: holds no request")
    return [Level(name, tuple(rows), tuple(states[name])).complete() for name, rows in requests.items()]


def request_of(data: Mapping[str, Any], where: str) -> Measured:
    """A request from its JSON form. A WorkloadError that starts with `where`."""
    found = checked(_REQUESTS.validate_python, data, where)
    if found.ttft_s is not None and found.e2e_s is not None and not 0 < found.ttft_s <= found.e2e_s:
        raise WorkloadError(f"{where}: expected 0 < ttft_s <= e2e_s")
    return found


_REQUESTS, _STATES = TypeAdapter(Measured), TypeAdapter(State)


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
