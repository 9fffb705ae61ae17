"""Measured arrivals through the engine model, and how far that is from what was measured: the loss of the fit and the errors
of the report.

Relative errors, |simulated / measured - 1|. The loss is of their logarithms, robust, each metric on the scale
of the error that we want of it, so that no metric is bought with another one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from backends import engine
from benchmarks.calibrate.measured import Level, Measured, Study
from benchmarks.calibrate.profile import Constants
from benchmarks.measures import quantiles
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import grouped

#: The median relative error that is aimed at on levels that were not fitted.
TARGETS: Mapping[str, float] = {"ttft": 0.15, "e2e": 0.10, "tpot": 0.08}
#: Quantiles that stand for a distribution where requests cannot be compared one by one.
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_QUEUE_SAMPLES = 200


def simulate(
    constants: Constants, requests: Sequence[Measured], *, prefix_caching: bool = False
) -> list[Measured]:
    """`requests` (sorted by arrival, output lengths known), each served on its replica, with the times that a client would
    see. A WorkloadError for a prompt or limits that the engine cannot take."""
    found = list(requests)
    for indices in grouped(range(len(requests)), lambda index: requests[index].replica).values():
        sequences: dict[int, engine.Sequence] = {}
        try:
            replica = engine.Engine(constants.profile, prefix_caching=prefix_caching, every_token=False)
            for index in indices:
                each = requests[index]
                tokens = each.prompt_tokens, each.output_tokens or 1
                sequences[index] = engine.Sequence(str(index), *tokens, each.prefix)
                replica.submit(sequences[index], each.arrival_s)
        except (engine.PromptTooLong, ValueError) as error:
            raise WorkloadError(f"the engine model cannot run this: {error}") from None
        progress = []
        while (next_s := replica.next_at()) is not None:
            progress += replica.advance(next_s)
        progress += replica.advance(float("inf"))
        ended_at_s = {int(name): at_s for name, at_s, _, finished in progress if finished is not None}
        admissions = sorted(each.admitted_at_s or 0.0 for each in sequences.values())
        ends = sorted(ended_at_s.values())
        for index, sequence in sequences.items():
            first_s = sequence.first_token_at_s
            assert first_s is not None  # noqa: S101 (it has ended)
            # How many the engine ran at the first token, this one included.
            client_s = constants.client_s(bisect_right(admissions, first_s) - bisect_left(ends, first_s))
            arrival_s = requests[index].arrival_s
            found[index] = replace(
                requests[index],
                ttft_s=first_s - arrival_s + client_s,
                e2e_s=ended_at_s[index] - arrival_s + client_s,
            )
    return found


class Pair(NamedTuple):
    """A request as measured and as simulated."""

    measured: Measured
    simulated: Measured


def pairs(study: Study, level: Level, constants: Constants) -> list[Pair]:
    """Every request of a level beside its simulation."""
    simulated = simulate(constants, level.requests, prefix_caching=study.prefix_caching)
    return list(map(Pair, level.requests, simulated))


def ratios(found: Sequence[Pair], metric: str, *, paired: bool) -> list[float]:
    """Simulated over measured: one a request that was measured, or one a quantile of the distributions."""
    name = f"{metric}_s"
    values = [
        (simulated, measured)
        for each in found
        if (measured := getattr(each.measured, name))
        and each.measured.e2e_s is not None
        and (simulated := getattr(each.simulated, name))
    ]
    if paired:
        return [simulated / measured for simulated, measured in values]
    if not values:
        return []
    simulated_s, measured_s = np.sort(values, axis=0).T
    shares: list[float] = (quantiles(simulated_s, _QUANTILES) / quantiles(measured_s, _QUANTILES)).tolist()
    return shares


def residuals(study: Study, levels: Sequence[Level], constants: Constants) -> list[float]:
    """What a fit makes small: signed, and weighted so that the sum of squares is the mean over levels and metrics
    of sqrt(1 + (log ratio / target)^2) - 1. Every level weighs the same, however many requests it has; one
    far off weighs by its distance, not by its square."""
    blocks = []
    for level in levels:
        found = pairs(study, level, constants)
        for metric, scale in TARGETS.items():
            logs = [math.log(max(each, 1e-9)) / scale for each in ratios(found, metric, paired=study.paired)]
            if logs:
                blocks.append([math.copysign(math.sqrt((math.hypot(1, z) - 1) / len(logs)), z) for z in logs])
    weight = 1 / math.sqrt(len(blocks))
    return [weight * each for block in blocks for each in block]


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of one metric: median, 90th percentile and mean of their size, and the median with its sign."""

    count: int
    median: float
    p90: float
    bias: float
    mean: float


@dataclass(frozen=True, slots=True)
class LevelErrors:
    """A level's errors by metric (ttft, e2e, tpot), its distributions and its queue.

    `quantiles` are {metric: {p50: [measured, simulated], ...}} in seconds. The queue is the number of
    requests that have arrived and have no first token: [measured, simulated], at its highest and on average; None where no TTFT was measured.
    """

    level: str
    requests: int
    rate_per_s: float
    errors: dict[str, Error]
    quantiles: dict[str, dict[str, tuple[float, float]]]
    queue_peak: tuple[int, int] | None
    queue_mean: tuple[float, float] | None


def error_of(values: Sequence[float]) -> Error | None:
    """The error of these ratios; None without any."""
    if not values:
        return None
    errors = np.sort(values) - 1
    median, p90 = quantiles(np.sort(np.abs(errors)), (0.5, 0.9)).tolist()
    return Error(len(values), median, p90, float(quantiles(errors, 0.5)), float(np.abs(errors).mean()))


def level_errors(
    study: Study, level: Level, constants: Constants
) -> tuple[LevelErrors, dict[str, list[float]]]:
    """The errors of one level, and the ratios that they come from by metric."""
    found = pairs(study, level, constants)
    raw = {metric: ratios(found, metric, paired=study.paired) for metric in TARGETS}
    errors = {metric: error for metric, values in raw.items() if (error := error_of(values))}
    measured, simulated = (list(_queue(found, side)) for side in ("measured", "simulated"))
    return (
        LevelErrors(
            level=level.name,
            requests=sum(each.e2e_s is not None for each in level.requests),
            rate_per_s=level.rate_per_s,
            errors=errors,
            quantiles={metric: _quantiles(found, metric) for metric in errors},
            queue_peak=(max(measured), max(simulated)) if measured else None,
            queue_mean=(sum(measured) / len(measured), sum(simulated) / len(simulated)) if measured else None,
        ),
        raw,
    )


def _quantiles(found: Sequence[Pair], metric: str) -> dict[str, tuple[float, float]]:
    known = [
        each for each in found if getattr(each.measured, f"{metric}_s") is not None and each.measured.e2e_s
    ]
    shares = (0.1, 0.5, 0.9, 0.99)
    measured, simulated = (
        quantiles(sorted(getattr(getattr(each, side), f"{metric}_s") for each in known), shares).tolist()
        for side in ("measured", "simulated")
    )
    pairs_s = zip(measured, simulated, strict=True)
    return {f"p{round(100 * q)}": pair for q, pair in zip(shares, pairs_s, strict=True)}


def _queue(found: Sequence[Pair], side: str) -> Iterator[int]:
    """Requests without a first token at instants spread over the measured run."""
    known = [each for each in found if each.measured.ttft_s is not None and each.measured.e2e_s is not None]
    if not known:
        return
    first = min(each.measured.arrival_s for each in known)
    last = max(each.measured.arrival_s + (each.measured.ttft_s or 0.0) for each in known)
    spans = [(one.arrival_s, one.arrival_s + one.ttft_s) for one in (getattr(each, side) for each in known)]
    for index in range(_QUEUE_SAMPLES):
        at_s = first + (last - first) * (index + 0.5) / _QUEUE_SAMPLES
        yield sum(start <= at_s < end for start, end in spans)
