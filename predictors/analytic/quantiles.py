"""Distributions of log errors that are given by a few quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from predictors.analytic.normal import beyond, scores

#: The quantiles of a log error that the latency model predicts.
TAUS = (0.1, 0.5, 0.9, 0.95, 0.99)
#: The positions of the median and of the 95 % quantile in TAUS.
P50, P95 = TAUS.index(0.5), TAUS.index(0.95)

#: Log factors are cut here: for an engine a million times slower than expected there is no better estimate.
_MOST_LOG = 14.0
#: Normal scores of TAUS.
_SCORES = np.array([NormalDist().inv_cdf(tau) for tau in TAUS])
_SCORE_WIDTHS = np.diff(_SCORES)
#: Keeps the quantiles of a distribution apart.
_APART = 1e-6 * np.arange(len(TAUS))


class Distributions:
    """N distributions of log errors, given by their quantiles at TAUS. Between the quantiles and beyond them each
    distribution continues as a normal distribution with these quantiles would."""

    __slots__ = ("_first", "_values")

    def __init__(self, quantiles: np.ndarray) -> None:
        # Equal quantiles would make a step, which has no inverse.
        self._values = quantiles + _APART
        self._first = np.arange(len(quantiles)) * len(TAUS)

    def exceed(self, residuals: np.ndarray) -> np.ndarray:
        """(N,): P(r > residual) of each distribution, for one residual each."""
        piece = (self._values[:, 1:-1] < residuals[:, None]).sum(axis=1)
        low, width = self._ends(self._first + piece)
        return beyond(_SCORES[piece] + (residuals - low) * _SCORE_WIDTHS[piece] / width)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(N, K): the log errors not exceeded with these probabilities (N, K) in [0, 1]."""
        at = scores(np.minimum(np.maximum(shares, 1e-15), 1.0 - 1e-15))
        piece = _SCORES[1:-1].searchsorted(at)
        low, width = self._ends(self._first[:, None] + piece)
        found: np.ndarray = low + (at - _SCORES[piece]) * width / _SCORE_WIDTHS[piece]
        return found

    def _ends(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(left end, width) of the pieces at these positions."""
        values = self._values.ravel()
        low = values[at]
        return low, values[at + 1] - low


class Distribution:
    """One of `Distributions`, as a `predictors.analytic.log_errors.LogError`."""

    __slots__ = ("_of",)

    def __init__(self, values: Sequence[float]) -> None:
        self._of = Distributions(np.array([values]))

    def quantile(self, probability: float) -> float:
        """The log error not exceeded with this probability."""
        return float(self._of.quantiles(np.array([[probability]]))[0, 0])

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        return float(self._of.exceed(np.array([residual]))[0])


def factors_of(quantiles: np.ndarray) -> np.ndarray:
    """(..., 3): median, 95 % quantile and mean of exp(r), for quantiles (..., TAUS) of r. The mean is that of the
    log-normal distribution with the other two."""
    found = np.empty((*quantiles.shape[:-1], 3))
    found[..., 0], found[..., 1] = quantiles[..., P50], quantiles[..., P95]
    deviation = np.minimum((found[..., 1] - found[..., 0]) / _SCORES[P95], 1.0)
    found[..., 2] = found[..., 0] + 0.5 * deviation * deviation
    np.minimum(found, _MOST_LOG, out=found)
    factors: np.ndarray = np.exp(found)
    return factors
