"""One and the same request, again and again: on one instance, and on unlike ones.

An instance gets a background of independent requests at a share of its capacity, and the probe, a fixed request, at
independent times in between. The engine model itself has no noise, so all that differs between two probes at one instance
is what else the engine does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import (
    LATENCIES,
    alone,
    background,
    capacities_per_s,
    kinds_of,
    play,
    together,
    unequal_fleet,
)
from benchmarks.experiments.variance import explained_by_groups, places
from benchmarks.measures import Summary, coefficient_of_variation
from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.generators import Process

LOADS = (0.3, 0.6, 0.9)
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 130
#: Requests of the background for each probe, so that probes hardly add to the load.
_BACKGROUND = 15


@dataclass(frozen=True, slots=True)
class Probed:
    """The probes at one instance under one load; seconds by latency."""

    instance: str
    load: float
    seconds: dict[str, npt.NDArray[np.float64]]


def section(repeats: int, seed: int) -> Section:
    """The same request `repeats` times on each kind of instance under each load."""
    found = list(_probed(repeats, seed))
    shares = {
        f"{name}, load {load:g}": _shares([each for each in found if each.load == load], name)
        for load in LOADS
        for name in LATENCIES
    }
    e2e = {
        instance: [
            (f"load {each.load:g}", *np.quantile(each.seconds["E2E"], (0.5, 0.05, 0.95)).tolist())
            for each in found
            if each.instance == instance
        ]
        for instance in dict.fromkeys(each.instance for each in found)
    }
    return Section(
        "The same request on the same instance, and on others",
        [
            f"A request of {PROMPT_TOKENS} input and {OUTPUT_TOKENS} output tokens is sent {repeats} times to each instance,"
            " beside a background of other requests that takes a share of the instance's capacity. The capacity is the"
            " rate at which the instance answers under overload.",
            "The engine model has no noise of its own: on an idle instance all repetitions take the same time. What differs"
            " here is what else the engine does. With --url the noise of a real engine is measured.",
            "Shares are of the variance of log seconds over all kinds of instance at one load.",
        ],
        [
            Results.of("The same request by instance and load", [_row(each) for each in found]),
            Results(
                "Share of the variance of log latency that the instance explains",
                ("latency and load", "between instances", "within an instance"),
                [(name, *share.values()) for name, share in shares.items()],
            ),
        ],
        [
            charts.lines(
                "same_request_cv",
                "The same request on one instance: coefficient of variation by load",
                "load (share of capacity)",
                "coefficient of variation",
                {
                    name: {
                        instance: [
                            (each.load, coefficient_of_variation(each.seconds[name]) or 0.0)
                            for each in found
                            if each.instance == instance
                        ]
                        for instance in e2e
                    }
                    for name in LATENCIES
                },
            ),
            charts.lanes(
                "same_request_e2e",
                "The same request on unlike instances: median and 5 % to 95 % of its end-to-end time",
                "E2E (s)",
                e2e,
                log=True,
            ),
            charts.stacked(
                "same_request_shares",
                "What the latency of the same request depends on",
                "share of the variance of log latency (%)",
                shares,
            ),
        ],
    )


def _probed(repeats: int, seed: int) -> Iterator[Probed]:
    config = unequal_fleet()
    for name in kinds_of(config):
        fleet = alone(config, name)
        able_per_s = capacities_per_s(seed)[name]
        for load in LOADS:
            rate_per_s = load * able_per_s
            others = background(rate_per_s, _BACKGROUND * repeats, seed)
            probes = _probes(rate_per_s / _BACKGROUND, repeats, seed)
            seen = play(fleet, together(others, probes), "round_robin", seed)
            rows = seen.of(each.id for each in probes)
            yield Probed(name, load, {key: seen.columns[column][rows] for key, column in LATENCIES.items()})


def _probes(rate_per_s: float, count: int, seed: int) -> list[WorkloadRequest]:
    one = WorkloadRequest("", 0.0, PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
    times = islice(Process("poisson", rate_per_s).times(seed + 1), count)
    return [replace(one, id=f"probe-{place}", arrival_s=at_s) for place, at_s in enumerate(times)]


def _shares(found: list[Probed], name: str) -> dict[str, float]:
    seconds = np.log(np.concatenate([each.seconds[name] for each in found]).astype(float))
    instances = np.repeat([each.instance for each in found], [len(each.seconds[name]) for each in found])
    share = max(0.0, explained_by_groups(seconds, places(instances)))
    return {"which instance": share, "what else it does": 1 - share}


def _row(each: Probed) -> dict[str, Value]:
    requests = len(each.seconds["E2E"])
    row: dict[str, Value] = {"instance": each.instance, "load": f"{each.load:g}", "requests": requests}
    for name, seconds in each.seconds.items():
        found = Summary.of(seconds)
        ratio = None if not found.p50 or found.p95 is None else found.p95 / found.p50
        variation = coefficient_of_variation(seconds) or 0.0
        row |= {f"{name} mean (s)": found.mean, f"{name} CV": variation, f"{name} p95 / p50": ratio}
    return row
