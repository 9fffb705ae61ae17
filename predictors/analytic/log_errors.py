"""Distributions of the log errors ln(actual / physical estimate) of TTFT and TPOT, for N candidates at once.

The latency model gives some of them as quantiles. The others are the windows of the physical estimate's own errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from predictors.analytic.quantiles import Distributions


class LogError(Protocol):
    """The distribution of one log error."""

    def quantile(self, probability: float) -> float:
        """The log error not exceeded with this probability."""
        ...

    def exceed(self, residual: float) -> float:
        """P(log error > residual)."""
        ...


class ErrorWindow(LogError, Protocol):
    """A distribution that is read from a window of observed errors (`predictors.online.residuals`)."""

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """The log errors not exceeded with these probabilities."""
        ...


class LogErrors:
    """`windows` (2 N,) are those of TTFT, then those of TPOT; None where the latency model serves. `quantiles`
    (candidates that it serves, TAUS) are the model's, in the same order."""

    __slots__ = ("_modelled", "_quantiles", "_read", "_windows")

    def __init__(self, windows: Sequence[ErrorWindow | None], quantiles: np.ndarray) -> None:
        self._quantiles = Distributions(quantiles)
        self._modelled = [at for at, window in enumerate(windows) if window is None]
        self._windows = [(at, window) for at, window in enumerate(windows) if window is not None]
        self._read = [at for at, _ in self._windows]

    def exceed(self, residuals: np.ndarray) -> np.ndarray:
        """(2 N,): P(r > residual) of each distribution, for one residual each."""
        if not self._windows:
            return self._quantiles.exceed(residuals)
        given = residuals.tolist()
        read = [window.exceed(given[at]) for at, window in self._windows]
        if not self._modelled:
            return np.array(read)
        found = np.empty(residuals.shape)
        found[self._modelled] = self._quantiles.exceed(residuals[self._modelled])
        found[self._read] = read
        return found

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(2 N, K): the log errors not exceeded with these probabilities (2 N, K)."""
        if not self._windows:
            return self._quantiles.quantiles(shares)
        given = shares.tolist()
        read = [window.quantiles(given[at]) for at, window in self._windows]
        if not self._modelled:
            return np.array(read)
        found = np.empty(shares.shape)
        found[self._modelled] = self._quantiles.quantiles(shares[self._modelled])
        found[self._read] = read
        return found
