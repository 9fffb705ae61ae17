"""Measured requests, level by level, the file that holds them, and an engine's levels: those that are fitted, those held out.

The measurement form: JSON lines. The first is `{"headway_measurement": 1}` with whatever else its writer
tells; every other line is a request or a sample of the engine's state:

    {"level": "2", "arrival_s": 0.51, "prompt_tokens": 96, "output_tokens": 64, "ttft_s": 0.08, "e2e_s": 1.2}
    {"level": "2", "t_s": 1.0, "running": 3, "waiting": 0, "gen_tok_per_s": 88.1, "prompt_tok_per_s": 51.0, "kv_usage": 0.02}

Times are seconds; arrivals and samples of a level share one clock. `output_tokens`, `ttft_s` and `e2e_s` may
be null: such a request loads the engine in the simulation and is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from pydantic import TypeAdapter

from benchmarks.calibrate.profile import Constants
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


# --- one engine -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Split:
    """Names of the fitted levels and of those held out; no level is in both."""

    fit: tuple[str, ...]
    test: tuple[str, ...]


#: Level names in order of load to a split of them.
Splitter = Callable[[Sequence[str]], Split]


@dataclass(frozen=True, slots=True)
class Study:
    """Levels of one engine (or of a cluster of like ones) and how they are to be compared.

    `paired`: each request against its own simulation; else only the distributions of a level, as where it is
    not known which replica served whom. `limits` are what the source knows of the engine's limits, `start` the
    registered profile nearest to it. `first` are constants to start with where the levels lack the times for a guess.
    `checks` are other predictions of the held-out levels: predicted over measured E2E, by the name of the prediction.
    The report also has the held-out errors of all engines that share a name in `groups`.
    """

    name: str
    levels: Mapping[str, Level]
    split: Split
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    start: str | None = None
    paired: bool = True
    prefix_caching: bool = False
    notes: tuple[str, ...] = ()
    first: Constants | None = None
    checks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()

    def part(self, names: Sequence[str]) -> list[Level]:
        return [self.levels[name] for name in names]


def by_load(levels: Sequence[Level]) -> list[Level]:
    """The levels in order of offered load. A WorkloadError if two have one name."""
    names = [level.name for level in levels]
    for name in names:
        if names.count(name) > 1:
            raise WorkloadError(f"level {name!r} is in more than one file")
    return sorted(levels, key=lambda level: (level.rate_per_s, level.name))


def splitter(fit: Sequence[str] | None, test: Sequence[str] | None) -> Splitter:
    """Split by these names; all others go to the other side. Without names: of every three levels in order of
    load the middle one is held out, of two the lower. The splitter raises a WorkloadError for names that do not fit."""

    def split(names: Sequence[str]) -> Split:
        for each in (*(fit or ()), *(test or ())):
            if each not in names:
                raise WorkloadError(f"unknown level {each!r} in --fit or --test (known: {', '.join(names)})")
        both = sorted(set(fit or ()) & set(test or ()))
        if both:
            raise WorkloadError(f"level {both[0]!r} is in --fit and in --test: leave it out of one of them")
        held = test
        if fit is None and test is None:
            held = names[1::3] if len(names) > 2 else names[:-1]
        chosen = Split(
            tuple(fit if fit is not None else (each for each in names if each not in (held or ()))),
            tuple(held if held is not None else (each for each in names if each not in (fit or ()))),
        )
        if not chosen.fit:
            raise WorkloadError("no level is left to fit")
        return chosen

    return split
