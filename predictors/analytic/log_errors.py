"""Distributions of ln(actual / physical) of both times (TTFT and TPOT) of N candidates: as the latency model told
them where it is heard, elsewhere the windows of the physical estimate's own errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.learned.latency.conformal import Distributions
from predictors.online.residuals import ResidualWindow


class LogErrors:
    """`windows` (2 N,) are first those of TTFT, then those of TPOT, None where the model is heard; `told` (heard ones,
    TAUS) are its quantiles there, in order."""

    __slots__ = ("_heard", "_told", "_windows")

    def __init__(self, windows: Sequence[ResidualWindow | None], told: np.ndarray) -> None:
        self._told = Distributions(told)
        self._heard = [at for at, window in enumerate(windows) if window is None]
        self._windows = [(at, window) for at, window in enumerate(windows) if window is not None]

    def exceed(self, residuals: np.ndarray) -> np.ndarray:
        """(2 N,): P(r > residual) of each, for a residual each."""
        if not self._windows:
            return self._told.exceed(residuals)
        asked = residuals.tolist()
        found = [0.0] * len(asked)
        if self._heard:
            for at, exceeded in zip(
                self._heard, self._told.exceed(residuals[self._heard]).tolist(), strict=True
            ):
                found[at] = exceeded
        for at, window in self._windows:
            found[at] = window.exceed(asked[at])
        return np.array(found)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(2 N, K): the log residuals not exceeded with these probabilities (2 N, K)."""
        if not self._windows:
            return self._told.quantiles(shares)
        found = np.empty(shares.shape)
        if self._heard:
            found[self._heard] = self._told.quantiles(shares[self._heard])
        asked = shares.tolist()
        at_windows = [at for at, _ in self._windows]
        found[at_windows] = [window.quantiles(asked[at]) for at, window in self._windows]
        return found
