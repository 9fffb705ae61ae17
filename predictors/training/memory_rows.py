"""Runs whose engines reported their KV use, as rows for the memory model: the features at each dispatch, and the mean
KV use over that request's life, from the reports that came in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictors.kernels import memory_rows
from predictors.learned.latency import TARGET_FEATURES
from predictors.training.dataset import Attempt, Dataset, DatasetError, Run, State, by_run
from predictors.training.replay import replay

_KV_USAGE = TARGET_FEATURES.index("kv_usage")
#: The part of a request's life that the reports must cover.
_LEAST_COVERED = 0.5


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """The usable requests of one run. `features` (N, memory features), `held` (N,) the closed form, `reported` (N,) the
    last report's KV use, `actual` (N,) the mean use over each life. `kv_known`: whether the model saw the reports; else
    it saw none, as with an engine that reports nothing."""

    run: Run
    kv_known: bool
    features: np.ndarray
    held: np.ndarray
    reported: np.ndarray
    actual: np.ndarray


def rows_of_runs(data: Dataset, *, kv_known: bool = True) -> Iterator[MemoryRows]:
    """The rows of every run that has usable requests."""
    attempts = by_run(data.attempts)
    states = by_run(state for state in data.states if state.kv_usage is not None)
    for run in data.runs:
        # For a cluster, the members' reports would have to be averaged.
        if run.replicas == 1 and attempts[run.id] and len(states[run.id]) > 1:
            found = _rows(run, attempts[run.id], states[run.id], kv_known)
            if len(found.actual):
                yield found


def _rows(run: Run, attempts: Sequence[Attempt], states: Sequence[State], kv_known: bool) -> MemoryRows:
    attempts = sorted(attempts, key=lambda each: each.dispatched_s)
    states = sorted(states, key=lambda each: each.at_s)
    actual = mean_use(attempts, states)
    known = np.isfinite(actual)
    seen_states = (
        states if kv_known else [replace(each, running=None, waiting=None, kv_usage=None) for each in states]
    )
    episode = replay(run, attempts, seen_states)
    reported = episode.targets[:, _KV_USAGE]
    features = memory_rows(
        episode.held.tolist(), reported.tolist() if kv_known else [None] * len(attempts), episode.targets
    )
    return MemoryRows(run, kv_known, features[known], episode.held[known], reported[known], actual[known])


def mean_use(attempts: Sequence[Attempt], states: Sequence[State]) -> np.ndarray:
    """(N,) mean KV use from each request's dispatch to its end, linear between reports (in order of time). NaN for a
    request without a complete answer, and where the reports cover too little of its life."""
    at_s = np.array([each.at_s for each in states])
    use = np.array([each.kv_usage for each in states], float)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * (use[1:] + use[:-1]) / 2)])
    starts = np.array([each.dispatched_s for each in attempts])
    ends = np.array(
        [np.nan if each.ended_s is None or each.ended_how != "ok" else each.ended_s for each in attempts]
    )
    seen_s = np.minimum(ends, at_s[-1]) - starts
    used = _integrated(np.minimum(np.nan_to_num(ends), at_s[-1]), at_s, use, integral)
    used -= _integrated(starts, at_s, use, integral)
    known = (starts >= at_s[0]) & (seen_s > 0.0) & (seen_s >= _LEAST_COVERED * (ends - starts))
    return np.where(known, np.clip(used / np.where(known, seen_s, 1.0), 0.0, 1.0), np.nan)


def _integrated(to_s: np.ndarray, at_s: np.ndarray, use: np.ndarray, integral: np.ndarray) -> np.ndarray:
    """The integral of the broken line through (at_s, use) up to each moment. It is `integral` at the corners."""
    left = np.clip(np.searchsorted(at_s, to_s, side="right") - 1, 0, len(at_s) - 2)
    since_s = np.clip(to_s, at_s[0], at_s[-1]) - at_s[left]
    slope = (use[left + 1] - use[left]) / np.maximum(at_s[left + 1] - at_s[left], 1e-9)
    found: np.ndarray = integral[left] + since_s * (use[left] + 0.5 * slope * since_s)
    return found


def usable(data: Dataset) -> list[MemoryRows]:
    """All rows, each run once with its reports and once without. Raises DatasetError if there are none."""
    found = [*rows_of_runs(data), *rows_of_runs(data, kv_known=False)]
    if not found:
        raise DatasetError(
            "no run with answers and reports of KV use: memory cannot be learned from these data"
        )
    return found
