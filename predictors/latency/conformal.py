"""Online calibration of the model's quantiles, and the distribution that they stand for.

Each quantile has an offset that moves up a little with every actual value above it and down with every one below,
in proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID Control,
arXiv 2307.16895; Gibbs & Candes, arXiv 2106.00072): whatever the model says, in the long run the right share lies
below. The step is small, since the model follows its instance by itself; larger ones chase spells of load.

Actual values have to be learned in order of dispatch, each as soon as it is known or overdue: those that come
first are the quick ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import erfc, sqrt
from statistics import NormalDist

import numpy as np

from predictors.latency.features import TAUS

#: Part of a spread that an offset moves at the most.
STEP = 0.01
#: Least spread that offsets are measured in (log seconds).
_LEAST_SPREAD = 0.03
#: Log factors are cut here: what is a million times slower than expected has no better estimate.
_MOST_LOG = 14.0
_NORMAL = NormalDist()
#: Normal scores of TAUS.
_SCORES = tuple(_NORMAL.inv_cdf(tau) for tau in TAUS)
_LOW, _MEDIAN, _HIGH = TAUS.index(0.1), TAUS.index(0.5), TAUS.index(0.9)
_P95 = TAUS.index(0.95)


class Offsets:
    """Offsets of the quantiles of one time (TTFT or TPOT) of one instance, or of all of one kind."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [0.0] * len(TAUS)

    def learn(self, served: Sequence[float], actual: float) -> None:
        """An actual value has come where the quantiles `served` had been foretold; of one that is overdue any
        value that is larger than the quantiles which it has passed will do."""
        values = self.values
        for at, tau in enumerate(TAUS):
            values[at] += STEP * (tau - (actual <= served[at]))


def calibrated(told: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(..., TAUS): the model's quantiles as they serve; they do not cross. An offset is measured in how far its
    quantile is from the median; the median's own in half of the 80 % range."""
    spreads = np.abs(told - told[..., _MEDIAN, None])
    spreads[..., _MEDIAN] = 0.5 * (told[..., _HIGH] - told[..., _LOW])
    np.maximum(spreads, _LEAST_SPREAD, out=spreads)
    found: np.ndarray = told + offsets * spreads
    np.maximum.accumulate(found[..., _MEDIAN:], axis=-1, out=found[..., _MEDIAN:])
    np.minimum(found[..., _LOW], found[..., _MEDIAN], out=found[..., _LOW])
    return found


class Distribution:
    """A distribution of log residuals by its quantiles at TAUS: between them, and beyond, as a normal one that
    has these quantiles would go on. Answers as `predictors.residuals.ResidualWindow` does."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[float]) -> None:
        # Equal ones would make a step, which has no inverse.
        self.values = [value + 1e-6 * at for at, value in enumerate(values)]

    def quantile(self, probability: float) -> float:
        """The log residual not exceeded with this probability."""
        score = _NORMAL.inv_cdf(min(max(probability, 1e-15), 1.0 - 1e-15))
        return _along(score, _SCORES, self.values)

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        return 0.5 * erfc(_along(residual, self.values, _SCORES) / sqrt(2.0))


def factors_of(quantiles: np.ndarray) -> np.ndarray:
    """(..., 3): median, 95 % quantile and mean of exp(r), for quantiles (..., TAUS) of r. The mean is that of a
    log-normal with the other two."""
    found = np.empty((*quantiles.shape[:-1], 3))
    found[..., 0], found[..., 1] = quantiles[..., _MEDIAN], quantiles[..., _P95]
    deviation = np.minimum((found[..., 1] - found[..., 0]) / _SCORES[_P95], 1.0)
    found[..., 2] = found[..., 0] + 0.5 * deviation * deviation
    np.minimum(found, _MOST_LOG, out=found)
    factors: np.ndarray = np.exp(found)
    return factors


def _along(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The broken line through (xs, ys) at x, its first and last pieces going on."""
    at = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    return ys[at - 1] + (x - xs[at - 1]) * (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1])
