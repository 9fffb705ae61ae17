"""Straight lines through measured times, and their errors. `scripts/fit_profiles` fits its tables with them too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Errors(NamedTuple):
    """Relative errors of a fit over its table."""

    rows: int
    median: float
    p90: float


def errors(fitted: Array | float, measured: Array) -> Errors:
    """The errors of `fitted` against `measured`."""
    relative = np.abs(fitted / measured - 1)
    return Errors(len(measured), float(np.median(relative)), float(np.quantile(relative, 0.9)))


def line(x: Array, y: Array) -> tuple[float, float, Errors]:
    """Value at 0 and slope of the straight line with the least sum of squared relative errors."""
    columns = np.stack([np.ones_like(x), x], axis=1)
    scale = np.array([1.0, float(np.max(x))])
    found = np.linalg.lstsq(columns / scale / y[:, None], np.ones_like(y), rcond=None)[0] / scale
    return float(found[0]), float(found[1]), errors(columns @ found, y)
