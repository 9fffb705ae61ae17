"""The distribution of one model's output lengths, learned online (docs/predictions.md).

Counts in the bins of `predictors.kernels.length_bins` begin with those of the family, or of the prior, and are halved at
`_MAX_WEIGHT`. The weight of an answer that stopped at its cap is spread over the bins above, in proportion to what the
distribution expects there (the self-consistent estimate of Efron, 1967).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from predictors.kernels import LengthTable
from predictors.kernels.length_bins import BINS, PRIOR_SHARES, bin_of

#: The pseudo-observations that a family, or the prior, counts as.
_BORROWED_WEIGHT = 8.0
_MAX_WEIGHT = 1024.0
#: Derived tables may lag behind by this share of the observations, and by at most this number.
_LAG, _MOST_LAG = 1 / 16, 128
_PRIOR = np.array(PRIOR_SHARES)


class LengthDistribution(LengthTable):
    """The distribution of one model's (or family's) output length, learned online.

    `parent` gives the shares until there are enough observations. The derived tables are refreshed after several
    observations, not after each.
    """

    __slots__ = ("_censored", "_counts", "_stale", "_view", "_weight", "observed", "parent")

    def __init__(self, parent: LengthDistribution | None = None) -> None:
        super().__init__(_PRIOR if parent is None else parent.shares)
        self.parent = parent
        self.observed = 0  # number of answers so far
        self._counts = np.zeros(BINS)
        self._view: Any = self._counts.data  # the same memory: a number is read and written in fewer steps
        self._censored: dict[int, float] = {}  # not spread yet: 1 / P(Y > left edge), summed by bin
        self._weight = 0.0
        self._stale = 0

    def observe(self, tokens: int, *, censored: bool = False) -> None:
        """Learn from an answer of `tokens`. `censored`: it stopped at its cap."""
        self.observe_bin(bin_of(tokens), censored)

    def observe_bin(self, at: int, censored: bool) -> None:
        """Learn from an answer in bin `at`. `censored`: it stopped at its cap."""
        self.observed += 1
        if self._weight >= _MAX_WEIGHT:
            self._refresh()
            self._counts /= 2
            self._weight /= 2
        self._weight += 1.0
        above = 1.0 - self.below(at) if censored else 0.0
        if above > 1e-9:
            self._censored[at] = self._censored.get(at, 0.0) + 1.0 / above
        else:
            self._view[at] += 1.0
        self._stale = stale = self._stale + 1
        if stale >= _MOST_LAG or stale > self.observed * _LAG:
            self._refresh()

    def _spread_censored(self) -> None:
        """Spread the weight of capped answers over the bins above their caps, by the shares known so far."""
        weights = np.zeros(BINS)
        weights[list(self._censored)] = list(self._censored.values())
        self._counts += self.shares * np.cumsum(weights)
        self._censored.clear()

    def _refresh(self) -> None:
        if self._censored:
            self._spread_censored()
        borrowed = _PRIOR if self.parent is None else self.parent.shares
        scale = 1.0 / (self._weight + _BORROWED_WEIGHT)
        self.take((self._counts + _BORROWED_WEIGHT * borrowed) * scale)
        self._stale = 0
