"""Distributions of log errors that are given by a few quantiles (`predictors.kernels.levels.TAUS`), and how much the latency
model counts against the physical estimate: by the record of both.

At each decision both predict the quantiles of one log error. Their weighted mean serves, quantile by quantile. With each
actual value the weight of either is multiplied by exp(-RATE x its pinball loss / the running mean loss of both), and then
`SHARE` of all weight is spread anew as at first (exponential weights with fixed share: Herbster & Warmuth, Tracking the
Best Expert, Machine Learning 32, 1998). So what was wrong for long counts again soon after it is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import erfc, exp, sqrt
from statistics import NormalDist

import numpy as np

from predictors.kernels.levels import P10, P50, P90, P95, SCORES, TAUS
from predictors.kernels.reference.estimates import AnalyticEstimate

#: Log factors are cut here: for an engine a million times slower than expected there is no better estimate.
MOST_LOG = 14.0
#: Keeps the quantiles of a distribution apart.
APART = 1e-6
_NORMAL, _ROOT_HALF = NormalDist(), sqrt(0.5)
#: Least spread that offsets are measured in (log seconds).
LEAST_SPREAD = 0.03

#: The predictions of one log error, in the order in which their quantiles are kept.
PREDICTIONS = ("served", "physical", "model")
#: The model's weight before anything is observed.
FIRST_WEIGHT = 0.9
#: Losses of neighbours in time are alike. A quicker RATE follows spells of load.
RATE, SHARE = 0.15, 0.01
#: Observations over which the mean loss averages, and its least value: a smaller difference shows nothing.
MEMORY, LEAST_LOSS = 50, 1e-3
#: The log of the largest change of the weights' ratio by one observation.
MOST_CHANGE = 10.0


class QuantileErrors:
    """The distribution of a log error, given by its quantiles at TAUS. Between them and beyond them it continues as a normal
    distribution with these quantiles would."""

    __slots__ = ("_values",)

    def __init__(self, quantiles: Sequence[float]) -> None:
        # Equal quantiles would make a step, which has no inverse.
        self._values = [value + APART * at for at, value in enumerate(quantiles)]

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        at = sum(value < residual for value in self._values[1:-1])
        low, high = self._values[at : at + 2]
        score = SCORES[at] + (residual - low) * (SCORES[at + 1] - SCORES[at]) / (high - low)
        return 0.5 * erfc(score * _ROOT_HALF)

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """The log errors not exceeded with these probabilities, from 0 to 1."""
        found = []
        for probability in probabilities:
            score = _NORMAL.inv_cdf(min(max(probability, 1e-15), 1.0 - 1e-15))
            at = bisect_left(SCORES[1:-1], score)
            low, high = self._values[at : at + 2]
            found.append(low + (score - SCORES[at]) * (high - low) / (SCORES[at + 1] - SCORES[at]))
        return found


class ModelWeight:
    """The weight of the latency model, 0 to 1, for one time (TTFT or TPOT) at one instance and model. The physical estimate has
    the rest."""

    __slots__ = ("_loss", "_observed", "value")

    def __init__(self) -> None:
        self.value = FIRST_WEIGHT
        self._loss = 0.0
        self._observed = 0

    def learn(self, quantiles: Sequence[float], actual: float) -> None:
        """Learn from `actual`, for which `quantiles` were predicted at TAUS: those of each of PREDICTIONS, one after another."""
        if len(quantiles) != len(PREDICTIONS) * len(TAUS):
            raise ValueError("quantiles of other predictions")
        physical, model = (_loss(quantiles[at * len(TAUS) : (at + 1) * len(TAUS)], actual) for at in (1, 2))
        self._observed += 1
        self._loss += (0.5 * (physical + model) - self._loss) / min(self._observed, MEMORY)
        change = RATE * (model - physical) / max(self._loss, LEAST_LOSS)
        odds = exp(min(max(change, -MOST_CHANGE), MOST_CHANGE)) * (1.0 - self.value)
        self.value = (1.0 - SHARE) * self.value / (self.value + odds) + SHARE * FIRST_WEIGHT


def _loss(quantiles: Sequence[float], actual: float) -> float:
    """The mean pinball loss of quantiles at TAUS."""
    loss = 0.0
    for predicted, tau in zip(quantiles, TAUS, strict=True):
        by = actual - predicted
        loss += tau * by if by > 0.0 else (tau - 1.0) * by
    return loss / len(TAUS)


def factors_of(quantiles: np.ndarray) -> np.ndarray:
    """(..., 3): median, 95 % quantile and mean of exp(r), for quantiles (..., TAUS) of r. The mean is that of the
    log-normal distribution with the other two."""
    found = np.empty((*quantiles.shape[:-1], 3))
    found[..., 0], found[..., 1] = quantiles[..., P50], quantiles[..., P95]
    deviation = np.minimum((found[..., 1] - found[..., 0]) / SCORES[P95], 1.0)
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
