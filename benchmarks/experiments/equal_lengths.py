"""Requests of equal length on one instance: how much of their latency the lengths explain, and how much is left.

Input and output lengths are drawn from a few values each, independently, so that many requests have the same of both.
"""

from __future__ import annotations

from dataclasses import replace
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
    play,
    unequal_fleet,
)
from benchmarks.experiments.variance import explained_by_groups, places
from benchmarks.simulator import Fleet
from predictors.training.dataset import Dataset

INSTANCE, LOADS = "a100-0", (0.3, 0.6, 0.9)
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Published logs of single engines that have input lengths.
_LOGS = ("vllm_burst",)


def section(requests: int, seed: int, data: Path | None) -> Section:
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
    columns = play(fleet, requests, "round_robin", seed).columns
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
