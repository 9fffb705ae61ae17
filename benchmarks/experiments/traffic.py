"""Traffic at emulated instances, and what became of it on virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.scenarios import load_scenario
from benchmarks.simulator import Fleet, Simulation, arrivals, open_fleet
from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.generators import Lengths, Process, generate
from policies.placement.engine_rate import requests_per_s
from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, State
from predictors.training.memory_rows import mean_use
from router.config import FleetConfig
from router.core.profile import EngineProfile

#: What is measured of an answer, with its unit.
LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "E2E": "e2e_s"}
#: Input and output are about those of the Azure conversations of 2023.
USUAL = Lengths()
#: More load than an instance bears, over what its profile gives for the mean lengths.
_OVERLOAD = 1.5
#: Seconds between two looks at the engines' memory.
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of requests, by their ids, in the order in which they came. `memory` is the mean share of the instance's
    KV memory that was in use from dispatch to end; NaN where the engine reports none."""

    ids: Sequence[str]
    columns: dict[str, npt.NDArray[Any]]
    memory: npt.NDArray[np.float64]

    def of(self, wanted: Iterable[str]) -> npt.NDArray[np.int64]:
        """The rows of requests."""
        rows = {name: row for row, name in enumerate(self.ids)}
        return np.array([rows[name] for name in wanted], np.int64)


def unequal_fleet() -> FleetConfig:
    """The eight unlike machines of the scenario `one-model-unequal-gpus`."""
    return load_scenario("one-model-unequal-gpus", small=True).fleet


def kinds_of(fleet: FleetConfig) -> list[str]:
    """One instance of each engine profile."""
    first: dict[str | None, str] = {}
    for each in fleet.instances:
        first.setdefault(each.profile_name(next(iter(each.serves))), each.name)
    return list(first.values())


def alone(fleet: FleetConfig, name: str) -> Fleet:
    """A fleet of one instance."""
    return opened(
        fleet.model_copy(update={"instances": tuple(each for each in fleet.instances if each.name == name)})
    )


def opened(fleet: FleetConfig) -> Fleet:
    """The fleet, whose engines are looked at often."""
    return open_fleet(
        fleet.model_copy(update={"probes": fleet.probes.model_copy(update={"interval_s": _LOOK_S})})
    )


@cache
def capacities_per_s(seed: int) -> Mapping[str, float]:
    """By instance of the unequal fleet: the rate at which it answers usual requests, alone and under more load than it bears.
    The first and the last quarter of the answers do not count."""
    config = unequal_fleet()
    by_profile: dict[str, float] = {}
    for name in kinds_of(config):
        fleet = alone(config, name)
        profile = _profile(fleet)
        by_profile[profile.name] = _saturated_per_s(fleet, profile, seed)
    return {each.name: by_profile[_profile(alone(config, each.name)).name] for each in config.instances}


def _saturated_per_s(fleet: Fleet, profile: EngineProfile, seed: int) -> float:
    prompt_tokens = USUAL.prompt_median * exp(USUAL.prompt_sigma**2 / 2)
    output_tokens = USUAL.output_median * exp(USUAL.output_sigma**2 / 2)
    seats = profile.seats(fleet.instance(fleet.names[0]).fixed_slots)
    together = min(seats, profile.kv_capacity_tokens / (prompt_tokens + output_tokens))
    rate_per_s = _OVERLOAD * requests_per_s(profile, prompt_tokens, output_tokens, seats)
    # Those that are admitted at the start are few among all.
    columns = play(fleet, background(rate_per_s, 100 + round(5 * together), seed), seed).columns
    ended_s = np.sort((columns["arrival_s"] + columns["e2e_s"])[answered(columns)])
    first, last = len(ended_s) // 4, 3 * len(ended_s) // 4
    return float((last - first) / (ended_s[last] - ended_s[first]))


def _profile(fleet: Fleet) -> EngineProfile:
    return next(iter(fleet.instance(fleet.names[0]).profiles.values()))


def answered(columns: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Which requests got an answer."""
    return np.asarray(np.isfinite(columns["ttft_s"]) & (columns["output_tokens"] > 0))


def background(
    rate_per_s: float, count: int, seed: int, name: str = "", lengths: Lengths = USUAL
) -> list[WorkloadRequest]:
    """Independent requests of the usual or other lengths at a constant rate. Their ids begin with `name`."""
    times = Process("poisson", rate_per_s).times(seed)
    requests = generate(name or f"background{seed}", lengths, seed)
    return [
        replace(request, arrival_s=at_s)
        for at_s, request in zip(times, islice(requests, count), strict=False)
    ]


def together(*streams: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
    """Requests of several streams in order of their times."""
    return list(heapq.merge(*streams, key=lambda request: request.arrival_s))


def play(fleet: Fleet, requests: Sequence[WorkloadRequest], seed: int, policy: str | None = None) -> Seen:
    """Answer the requests on virtual time. Without a policy it is a fleet of one, whose choice needs no trained predictors."""
    predictor = OnlinePredictor() if policy is None else None
    asked = arrivals(requests, fleet, policy=policy or "round_robin")
    result = Simulation(fleet, seed=seed, predictor=predictor).run(asked)
    columns = result.columns
    times = [columns[name].tolist() for name in ("arrival_s", "queue_wait_s", "e2e_s")]
    lives = [(arrival_s + wait_s, arrival_s + e2e_s) for arrival_s, wait_s, e2e_s in zip(*times, strict=True)]
    memory = np.full(len(lives), np.nan)
    for place in range(len(result.instances)):
        rows = np.flatnonzero(columns["instance"] == place)
        reports = [(each.at_s, each.kv_usage) for each in result.timeline if each.instance == place]
        memory[rows] = mean_memory([lives[row] for row in rows], reports)
    return Seen([request.id for request in requests], columns, memory)


def mean_memory(
    lives: Sequence[tuple[float, float]], reports: Iterable[tuple[float, float | None]]
) -> npt.NDArray[np.float64]:
    """(N,) mean KV use over each life (start and end), from an engine's reports (moment and use); NaN where that is not known."""
    states = [State("", at_s, kv_usage=usage) for at_s, usage in reports if usage is not None]
    if len(states) < 2 or not lives:
        return np.full(len(lives), np.nan)
    return mean_use([Attempt("", "", start_s, 1, ended_s=end_s) for start_s, end_s in lives], states)
