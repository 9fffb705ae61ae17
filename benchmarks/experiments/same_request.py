"""One and the same request, again and again, on one instance and on unlike ones; and requests of equal length.

An instance gets a background of independent requests at a share of its capacity, and the probe, a fixed request, at
independent times in between. The engine model itself has no noise, so all that differs between two probes at one instance
is what else the engine does.

Of requests of equal length, input and output lengths are drawn from a few values each, independently, so that many have the
same of both: how much of their latency the lengths explain, and how much is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import exp
from pathlib import Path
from random import Random
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from benchmarks.datasets.public import present, read_public
from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import (
    LATENCIES,
    USUAL,
    alone,
    answered,
    background,
    capacities_per_s,
    kinds_of,
    play,
    together,
    unequal_fleet,
)
from benchmarks.experiments.variance import explained_by_groups, places
from benchmarks.measures import Summary, coefficient_of_variation
from benchmarks.simulator import Fleet
from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.generators import Process
from predictors.training.dataset import Dataset

LOADS = (0.3, 0.6, 0.9)
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 130
#: Requests of the background for each probe, so that probes hardly add to the load.
_BACKGROUND = 15
#: That gets requests of equal lengths.
INSTANCE = "a100-0"
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Published logs of single engines that have input lengths.
_LOGS = ("vllm_burst",)


#: Seconds of the probes at one instance under one load, by latency.
Probed = Mapping[str, npt.NDArray[np.float64]]


def repeated(repeats: int, seed: int) -> Section:
    """The same request `repeats` times on each kind of instance under each load."""
    config = unequal_fleet()
    found = {
        name: dict(_probed(alone(config, name), capacities_per_s(seed)[name], repeats, seed))
        for name in kinds_of(config)
    }
    shares = {
        f"{name}, load {load:g}": _shares({instance: each[load][name] for instance, each in found.items()})
        for load in LOADS
        for name in LATENCIES
    }
    e2e = {
        instance: [
            (f"load {load:g}", *np.quantile(seconds["E2E"], (0.5, 0.05, 0.95)).tolist())
            for load, seconds in each.items()
        ]
        for instance, each in found.items()
    }
    rows = [_row(instance, *of_load) for instance, each in found.items() for of_load in each.items()]
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
            Results.of("The same request by instance and load", rows),
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
                            (load, coefficient_of_variation(seconds[name]) or 0.0)
                            for load, seconds in each.items()
                        ]
                        for instance, each in found.items()
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


def _probed(fleet: Fleet, able_per_s: float, repeats: int, seed: int) -> Iterator[tuple[float, Probed]]:
    """By load."""
    for load in LOADS:
        rate_per_s = load * able_per_s
        others = background(rate_per_s, _BACKGROUND * repeats, seed)
        probes = _probes(rate_per_s / _BACKGROUND, repeats, seed)
        seen = play(fleet, together(others, probes), seed)
        rows = seen.of(each.id for each in probes)
        yield load, {key: seen.columns[column][rows] for key, column in LATENCIES.items()}


def _probes(rate_per_s: float, count: int, seed: int) -> list[WorkloadRequest]:
    one = WorkloadRequest("", 0.0, PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
    times = islice(Process("poisson", rate_per_s).times(seed + 1), count)
    return [replace(one, id=f"probe-{place}", arrival_s=at_s) for place, at_s in enumerate(times)]


def _shares(by_instance: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """What the instance explains of a latency under one load."""
    seconds = np.log(np.concatenate([*by_instance.values()]).astype(float))
    instances = np.repeat([*by_instance], [*map(len, by_instance.values())])
    share = max(0.0, explained_by_groups(seconds, places(instances)))
    return {"which instance": share, "what else it does": 1 - share}


def _row(instance: str, load: float, probed: Probed) -> dict[str, Value]:
    row: dict[str, Value] = {"instance": instance, "load": f"{load:g}", "requests": len(probed["E2E"])}
    for name, seconds in probed.items():
        found = Summary.of(seconds)
        ratio = None if not found.p50 or found.p95 is None else found.p95 / found.p50
        variation = coefficient_of_variation(seconds) or 0.0
        row |= {f"{name} mean (s)": found.mean, f"{name} CV": variation, f"{name} p95 / p50": ratio}
    return row


# --- equal lengths ------------------------------------------------------------------------------------
def equal_lengths(requests: int, seed: int, data: Path | None) -> Section:
    """`requests` on one instance under each load, and what published logs show of the same."""
    rows: list[dict[str, Value]] = []
    shares: dict[str, dict[str, float]] = {}
    fleet = alone(unequal_fleet(), INSTANCE)
    able_per_s = capacities_per_s(seed)[INSTANCE]
    for load in LOADS:
        found = _measured(fleet, load * able_per_s, requests, seed)
        for name, (of_input, of_both, spread) in found.items():
            row: dict[str, Value] = {"latency": name, "load": f"{load:g}", "input length": of_input}
            row |= {"input and output length": of_both, "left": 1 - of_both}
            rows.append(row | {"p95 / p5 at equal lengths": spread})
            shares[f"{name}, load {load:g}"] = {
                "input length": max(0.0, of_input),
                "output length": max(0.0, of_both - max(0.0, of_input)),
                "what else the engine does": 1 - max(0.0, of_both, of_input),
            }
    tables = [
        Results.of(
            f"Requests of equal length on {INSTANCE}: share of the variance of log latency that lengths explain",
            rows,
        )
    ]
    text = [
        f"{requests:,} requests on one A100 have one of {len(_QUANTILES)} input lengths and one of {len(_QUANTILES)} output"
        " lengths. Requests with both in common differ only in the other work of the engine.",
        "The last column: p95 / p5 of the requests with both lengths in common, the median over the pairs of lengths.",
    ]
    logs = [] if data is None else [_log(name, read_public(data, (name,))) for name in present(data, _LOGS)]
    if logs:
        tables.append(
            Results(
                "Real engines: share of the variance of log TTFT within a run that the exact input length explains",
                ("log", "requests", "that share their length with another one", "input length"),
                logs,
            )
        )
    return Section(
        "Requests of equal length on one instance",
        text,
        tables,
        [
            charts.stacked(
                "equal_lengths_shares",
                "What the latency of a request on one instance depends on",
                "share of the variance of log latency (%)",
                shares,
            )
        ],
    )


def _measured(
    fleet: Fleet, rate_per_s: float, count: int, seed: int
) -> dict[str, tuple[float, float, float]]:
    """By latency: the shares of input length and of both lengths, and the spread of what has both in common."""
    draw = Random(f"{seed}/equal lengths")
    inputs = _values(USUAL.prompt_median, USUAL.prompt_sigma)
    outputs = _values(USUAL.output_median, USUAL.output_sigma)
    requests = [
        replace(each, prompt_tokens=draw.choice(inputs), output_tokens=draw.choice(outputs))
        for each in background(rate_per_s, count, seed)
    ]
    columns = play(fleet, requests, seed).columns
    given = places([each.prompt_tokens for each in requests])
    both = places(given, [each.longest_output_tokens() or 0 for each in requests])
    found = {}
    for name, column in LATENCIES.items():
        known = answered(columns) & np.isfinite(columns[column])
        seconds = columns[column][known].astype(float)
        logs = np.log(seconds)
        found[name] = (
            explained_by_groups(logs, given[known]),
            explained_by_groups(logs, both[known]),
            _spread(seconds, both[known]),
        )
    return found


def _values(median: float, sigma: float) -> list[int]:
    return [max(2, round(median * exp(sigma * NormalDist().inv_cdf(q)))) for q in _QUANTILES]


def _spread(seconds: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> float:
    ends = [np.quantile(seconds[groups == group], (0.05, 0.95)) for group in np.unique(groups)]
    return float(np.median([high / low for low, high in ends]))


def _log(name: str, found: Dataset) -> list[Value]:
    """What the exact input length explains of TTFT within runs of one load, whose mean is no merit of the length."""
    known = [
        (each.run, each.prompt_tokens, each.first_token_s - each.dispatched_s)
        for each in found.attempts
        if each.first_token_s is not None and each.first_token_s > each.dispatched_s
    ]
    runs, lengths, seconds = zip(*known, strict=True)
    within, groups = places(runs), places(runs, lengths)
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    share = explained_by_groups(np.log(np.array(seconds)), groups, within)
    return [name, len(known), int((counts[place] > 1).sum()), share]
