"""Distributions of log errors that are given by a few quantiles (`predictors.kernels.levels.TAUS`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.kernels.levels import P10, P50, P90, P95, SCORES, TAUS
from predictors.kernels.reference.estimates import Estimates
from predictors.kernels.reference.forests import Forests
from predictors.kernels.reference.mixtures import EXPERTS, Mixture
from predictors.kernels.reference.normal import beyond, scores

#: Log factors are cut here: for an engine a million times slower than expected there is no better estimate.
MOST_LOG = 14.0
_SCORES = np.array(SCORES)
_SCORE_WIDTHS = np.diff(_SCORES)
#: Keeps the quantiles of a distribution apart.
APART = 1e-6
_APART = APART * np.arange(len(TAUS))
#: The largest part of a spread that an offset moves by.
STEP = 0.01
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


class Distribution:
    """One of `Distributions`, as a `predictors.kernels.interfaces.LogError`."""

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
    np.minimum(found, MOST_LOG, out=found)
    factors: np.ndarray = np.exp(found)
    return factors


def calibrated(predicted: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(..., TAUS): quantiles with their offsets (`Offsets`); they do not cross. The offset
    of a quantile is in units of its distance from the median; that of the median is in units of half of the 80 % range."""
    spreads = np.abs(predicted - predicted[..., P50, None])
    spreads[..., P50] = 0.5 * (predicted[..., P90] - predicted[..., P10])
    np.maximum(spreads, LEAST_SPREAD, out=spreads)
    found: np.ndarray = predicted + offsets * spreads
    np.maximum.accumulate(found[..., P50:], axis=-1, out=found[..., P50:])
    np.minimum(found[..., P10], found[..., P50], out=found[..., P10])
    return found


class Offsets:
    """Offsets of the quantiles of one time (TTFT or TPOT), shared by all instances of one kind.

    The offset of a quantile moves up a little with every actual value above the quantile and down with every one below, in
    proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID Control, arXiv
    2307.16895; Gibbs & Candes, arXiv 2106.00072). So in the long run the right share lies below, whatever is predicted. The
    step is small, since the experts follow their instance by themselves; larger steps chase spells of load.

    Actual values must be learned in order of dispatch, each as soon as it is known or overdue: the values that come first
    are the quick ones."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [0.0] * len(TAUS)

    def learn(self, predicted: Sequence[float], actual: float) -> None:
        """Learn from `actual`, for which the quantiles that `predicted` begins with served. For an overdue request, pass any
        value larger than the quantiles that it has exceeded."""
        values = self.values
        for at, tau in enumerate(TAUS):
            values[at] += STEP * (tau - (actual <= predicted[at]))


def served_quantiles(
    network: np.ndarray,
    forests: Forests,
    rows: np.ndarray,
    mixtures: Sequence[tuple[Mixture, Mixture]],
    offsets: Sequence[tuple[Offsets, Offsets]],
    estimates: Estimates,
    places: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2, 1 + EXPERTS, TAUS) quantiles of the log errors of TTFT and TPOT, what serves and then each expert's, and (N,
    2, 3) the factors that what serves stands for (`factors_of`), of N candidates.

    `network` (N, 2, TAUS) are the network's, of log errors to the corrected estimate. `forests` give their medians for
    target `rows`; around these the quantiles lie as the network's do around its own. `mixtures` are the candidate's, `offsets`
    those of its kind, and `estimates` at `places` its physical estimates."""
    size = len(network)
    if not size == len(rows) == len(mixtures) == len(offsets) == len(places):
        raise ValueError("columns of different lengths")
    found = np.empty((size, 2, 1 + len(EXPERTS), len(TAUS)))
    if not size:
        return found, np.empty((0, 2, 3))
    experts = found[:, :, 1:]
    experts[:, :, 0] = [estimates.levels(place) for place in places]
    experts[:, :, 1] = network
    experts[:, :, 2] = experts[:, :, 1] - experts[:, :, 1, P50, None] + forests.predict(rows)[:, :, None]
    experts[:, :, 1:] += experts[:, :, :1, P50, None]
    weights = np.array([[mixture.weights for mixture in both] for both in mixtures])
    found[:, :, 0] = calibrated(
        (weights[..., None] * experts).sum(axis=2),
        np.array([[each.values for each in both] for both in offsets]),
    )
    return found, factors_of(found[:, :, 0])
