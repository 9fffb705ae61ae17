"""What evaluations of predicted times share: TTFT and TPOT of replayed runs, in log seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.evaluate.figures import Figure, pinball, resampled_figure
from predictors.kernels.levels import P50, TAUS
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.replay import Episode

TIMES = ("TTFT", "TPOT")
#: First tokens that a part must have to be judged.
LEAST = 30
#: Requests of a run that resamples keep together.
_BLOCK = 50
_RESAMPLES = 300


def check_apart(test: Dataset, train: Dataset | None) -> None:
    """Raises DatasetError for an attempt that is in both. A log that was split in time shares runs, but no attempt."""
    known = set() if train is None else {(each.run, each.dispatched_s) for each in train.attempts}
    if shared := {each.run for each in test.attempts if (each.run, each.dispatched_s) in known}:
        raise DatasetError(
            f"attempts of {len(shared)} runs are in the training part and in the test part ({min(shared)})"
        )


def blocks_of(episode: Episode) -> np.ndarray:
    """(N,): the name of the block of neighbours in time that each request belongs to."""
    return np.array([f"{episode.run.id} {at // _BLOCK}" for at in range(len(episode.actual))])


def relative_errors(actual: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """|predicted / actual - 1| of log seconds."""
    # Beyond a factor of e^20 it does not matter by how much it is off.
    return np.asarray(np.abs(np.expm1(np.clip(predicted - actual, -20.0, 20.0))))


def known_times(actual: np.ndarray) -> Iterator[tuple[int, str, np.ndarray]]:
    """(column of `actual` (N, 2), name, rows in which it is known) of each time that is known often enough to judge."""
    for time, name in enumerate(TIMES):
        rows = np.flatnonzero(np.isfinite(actual[:, time]))
        if len(rows) >= LEAST:
            yield time, name, rows


def figure(
    name: str,
    of: str,
    part: str,
    values: np.ndarray,
    block: np.ndarray,
    seed: int,
    middle: Callable[[np.ndarray], np.floating] = np.mean,
) -> Figure:
    """The mean of `values`, or another `middle`, with its interval over blocks."""
    return resampled_figure(
        name, of, part, block, lambda rows: float(middle(values[rows])), resamples=_RESAMPLES, seed=seed
    )


def figures_of(
    name: str, of: str, part: str, actual: np.ndarray, predicted: np.ndarray, block: np.ndarray, seed: int
) -> tuple[Figure, Figure]:
    """(median relative error of the median, mean pinball loss over `TAUS`) of predicted quantiles (N, 5)."""
    errors = relative_errors(actual, predicted[:, P50])
    losses = pinball(actual[:, None], predicted, np.array(TAUS)).mean(axis=1)
    return (
        figure(f"{name} median relative error", of, part, errors, block, seed, np.median),
        figure(f"{name} pinball loss", of, part, losses, block, seed),
    )
