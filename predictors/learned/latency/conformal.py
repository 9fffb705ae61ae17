"""Online calibration of the model's quantiles, and the distribution that they stand for.

Each quantile has an offset that moves up a little with every actual value above it and down with every one below,
in proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID Control,
arXiv 2307.16895; Gibbs & Candes, arXiv 2106.00072): whatever the model says, in the long run the right share lies
below. The step is small, since the model follows its instance by itself; larger ones chase spells of load.

Actual values have to be learned in order of dispatch, each as soon as it is known or overdue: those that come
first are the quick ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from predictors.analytic.normal import beyond, scores
from predictors.learned.latency.features import TAUS

#: Part of a spread that an offset moves at the most.
STEP = 0.01
#: Least spread that offsets are measured in (log seconds).
_LEAST_SPREAD = 0.03
#: Log factors are cut here: what is a million times slower than expected has no better estimate.
_MOST_LOG = 14.0
_NORMAL = NormalDist()
#: Normal scores of TAUS.
_SCORES = np.array([_NORMAL.inv_cdf(tau) for tau in TAUS])
_SCORE_WIDTHS = np.diff(_SCORES)
#: Keeps the quantiles of a distribution apart.
_APART = 1e-6 * np.arange(len(TAUS))
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


class Distributions:
    """N distributions of log residuals by their quantiles at TAUS: between them, and beyond, as a normal one that
    has these quantiles would go on."""

    __slots__ = ("_first", "_values")

    def __init__(self, quantiles: np.ndarray) -> None:
        # Equal ones would make a step, which has no inverse.
        self._values = quantiles + _APART
        self._first = np.arange(len(quantiles)) * len(TAUS)

    def exceed(self, residuals: np.ndarray) -> np.ndarray:
        """(N,): P(r > residual) of each, for a residual each."""
        piece = (self._values[:, 1:-1] < residuals[:, None]).sum(axis=1)
        low, width = self._ends(self._first + piece)
        return beyond(_SCORES[piece] + (residuals - low) * _SCORE_WIDTHS[piece] / width)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(N, K): the log residuals not exceeded with these probabilities (N, K) in [0, 1]."""
        at = scores(np.minimum(np.maximum(shares, 1e-15), 1.0 - 1e-15))
        piece = _SCORES[1:-1].searchsorted(at)
        low, width = self._ends(self._first[:, None] + piece)
        found: np.ndarray = low + (at - _SCORES[piece]) * width / _SCORE_WIDTHS[piece]
        return found

    def _ends(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(left end, width) of pieces by their places."""
        values = self._values.ravel()
        low = values[at]
        return low, values[at + 1] - low


class Distribution:
    """One of `Distributions`, which answers as `predictors.online.residuals.ResidualWindow` does."""

    __slots__ = ("_of",)

    def __init__(self, values: Sequence[float]) -> None:
        self._of = Distributions(np.array([values]))

    def quantile(self, probability: float) -> float:
        """The log residual not exceeded with this probability."""
        return float(self._of.quantiles(np.array([[probability]]))[0, 0])

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        return float(self._of.exceed(np.array([residual]))[0])


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
