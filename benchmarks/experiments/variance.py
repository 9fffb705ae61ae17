"""Which share of a variance something explains. Latencies and lengths are judged by their logarithms: factors count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from benchmarks.evaluate.figures import Figure, resampled_figure

Values = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]
_RESAMPLES = 300


def places(*columns: npt.ArrayLike) -> Groups:
    """(N,): the number of each row's group. Rows are in one group if all columns are equal."""
    found = np.zeros(len(np.asarray(columns[0])), np.int64)
    for column in columns:
        _, place = np.unique(np.asarray(column), return_inverse=True)
        _, found = np.unique(found * (place.max() + 1) + place, return_inverse=True)
    return np.asarray(found, np.int64)


def explained_by_groups(values: Values, groups: Groups, within: Groups | None = None) -> float:
    """The share of the variance of `values` that the group of a row explains; with `within`, of the variance inside these
    larger groups. Both variances are unbiased (sums of squares over degrees of freedom), so that groups without meaning
    explain 0 in expectation, and may explain less than 0. NaN if no group has two rows."""
    outer = np.zeros(len(values), np.int64) if within is None else within
    left, left_freedom = _squares_within(values, groups)
    all_, all_freedom = _squares_within(values, outer)
    if left_freedom < 1 or all_ <= 0:
        return float("nan")
    return float(1 - (left / left_freedom) / (all_ / all_freedom))


def _squares_within(values: Values, groups: Groups) -> tuple[float, int]:
    """Squares around the means of groups, and their degrees of freedom."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(place, values) / counts
    return float(((values - means[place]) ** 2).sum()), len(values) - len(counts)


def explained_by_prediction(actual: Values, predicted: Values, within: Groups | None = None) -> float:
    """R^2: 1 - squared errors over squares around the mean, or around the means of the groups `within`. Below 0 the mean
    is the better prediction. NaN where there is no variance."""
    squares, _ = _squares_within(actual, np.zeros(len(actual), np.int64) if within is None else within)
    return float(1 - ((actual - predicted) ** 2).sum() / squares) if squares > 0 else float("nan")


def with_interval(
    values: Values, predicted: Values, blocks: npt.ArrayLike, within: Groups | None, seed: int
) -> Figure:
    """`explained_by_prediction` with its interval over resampled blocks."""

    def share(rows: npt.NDArray[np.int64]) -> float:
        return explained_by_prediction(
            values[rows], predicted[rows], None if within is None else within[rows]
        )

    return resampled_figure("R²", "", "", np.asarray(blocks), share, resamples=_RESAMPLES, seed=seed)


def crossed(table: Values, noise: float) -> Mapping[str, float]:
    """Shares of the variance of a full table (rows, columns) with one value each: of its rows, of its columns, of the pair
    of both, and of the `noise`, whose variance is that of one value by itself. The components are unbiased (two-way
    random effects); those below 0 count as 0."""
    rows, columns = table.shape
    over_rows, over_columns, mean = table.mean(axis=1), table.mean(axis=0), table.mean()
    rest = ((table - over_rows[:, None] - over_columns + mean) ** 2).sum() / ((rows - 1) * (columns - 1))
    of_rows = max(0.0, columns * ((over_rows - mean) ** 2).sum() / (rows - 1) - rest) / columns
    of_columns = max(0.0, rows * ((over_columns - mean) ** 2).sum() / (columns - 1) - rest) / rows
    total = of_rows + of_columns + rest
    of_noise = min(noise, rest) / total
    shares = {
        "rows": of_rows / total,
        "columns": of_columns / total,
        "pair": rest / total - of_noise,
        "noise": of_noise,
    }
    return {name: float(share) for name, share in shares.items()}
