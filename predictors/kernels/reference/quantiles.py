"""Distributions of log errors that are given by a few quantiles (`predictors.kernels.levels.TAUS`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.kernels.levels import P10, P50, P90, P95, SCORES, TAUS
from predictors.kernels.reference.estimates import AnalyticEstimate
from predictors.kernels.reference.model_weights import PREDICTIONS, ModelWeight
from predictors.kernels.reference.normal import beyond, scores

#: Log factors are cut here: for an engine a million times slower than expected there is no better estimate.
MOST_LOG = 14.0
_SCORES = np.array(SCORES)
_SCORE_WIDTHS = np.diff(_SCORES)
#: Keeps the quantiles of a distribution apart.
APART = 1e-6
_APART = APART * np.arange(len(TAUS))
#: Least spread that offsets are measured in (log seconds).
LEAST_SPREAD = 0.03


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


def factors_of(quantiles: np.ndarray) -> np.ndarray:
    """(..., 3): median, 95 % quantile and mean of exp(r), for quantiles (..., TAUS) of r. The mean is that of the
    log-normal distribution with the other two."""
    found = np.empty((*quantiles.shape[:-1], 3))
    found[..., 0], found[..., 1] = quantiles[..., P50], quantiles[..., P95]
    deviation = np.minimum((found[..., 1] - found[..., 0]) / _SCORES[P95], 1.0)
    found[..., 2] = found[..., 0] + 0.5 * deviation * deviation
    np.minimum(found, MOST_LOG, out=found)
    factors: np.ndarray = np.exp(found)
    return factors


def calibrated(predicted: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(..., TAUS): quantiles with their offsets (`calibration.Offsets`); they do not cross. The offset
    of a quantile is in units of its distance from the median; that of the median is in units of half of the 80 % range."""
    spreads = np.abs(predicted - predicted[..., P50, None])
    spreads[..., P50] = 0.5 * (predicted[..., P90] - predicted[..., P10])
    np.maximum(spreads, LEAST_SPREAD, out=spreads)
    found: np.ndarray = predicted + offsets * spreads
    np.maximum.accumulate(found[..., P50:], axis=-1, out=found[..., P50:])
    np.minimum(found[..., P10], found[..., P50], out=found[..., P10])
    return found


def served_quantiles(
    raw: np.ndarray,
    estimates: Sequence[AnalyticEstimate],
    places: Sequence[int],
    weights: Sequence[tuple[ModelWeight, ModelWeight]],
    offsets: Sequence[tuple[list[float], list[float]]],
) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2, PREDICTIONS, TAUS) quantiles of the log errors of TTFT and TPOT, as they serve and as the physical estimate and
    the latency model predict them, and (N, 2, 3) the factors that those which serve stand for (`factors_of`), of N candidates.

    `raw` (N, 2, TAUS) are the model's, of log errors to the corrected estimate. The candidates' physical estimates are those
    of `estimates` at `places`, `weights` are those of the model there, and `offsets` those of the candidate's kind."""
    if not len(raw) == len(places) == len(weights) == len(offsets):
        raise ValueError("columns of different lengths")
    found = np.empty((len(raw), 2, len(PREDICTIONS), len(TAUS)))
    if not len(raw):
        return found, np.empty((0, 2, 3))
    served, physical, model = (found[:, :, at] for at in range(len(PREDICTIONS)))
    for n, place in enumerate(places):
        each = estimates[place]
        physical[n] = each.ttft_errors.quantiles(TAUS), each.tpot_errors.quantiles(TAUS)
        model[n] = raw[n] + np.array([[each.estimate.ttft_bias], [each.estimate.tpot_bias]])
    share = np.array([[weight.value for weight in both] for both in weights])[:, :, None]
    served[:] = calibrated(share * model + (1.0 - share) * physical, np.array(offsets))
    return found, factors_of(served)
