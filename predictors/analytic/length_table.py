"""A distribution of output length, as shares of logarithmic bins, and the prior of all lengths.

The bins are single tokens up to 8, then four bins an octave.

The prior is log-normal with median 182 tokens and log standard deviation 0.91: the fit to equal parts of
the Azure LLM inference trace of 2023 (conversations), ShareGPT answers and ZeroEval answers (51 models),
which have p10 / p50 / p90 of 64 / 183 / 508 tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import erf, log, sqrt

import numpy as np

#: Prior of log output length; see the module's docstring.
PRIOR_LOG_MEDIAN = 5.20
PRIOR_LOG_SD = 0.91

_LARGEST_TOKENS = 262_144.0


def _bin_edges() -> list[float]:
    edges = [0.5 + n for n in range(9)]
    while edges[-1] < _LARGEST_TOKENS:
        edges.append(edges[-1] * 2**0.25)
    return edges


EDGES = _bin_edges()
BINS = len(EDGES) - 1
_EDGES = np.array(EDGES)
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2
_PER_WIDTH = 1 / np.diff(_EDGES)


def bin_of(tokens: float) -> int:
    """The bin of a length."""
    at = bisect_right(EDGES, tokens) - 1
    return 0 if at < 0 else (BINS - 1 if at >= BINS else at)


def _prior_shares() -> list[float]:
    def below(tokens: float) -> float:
        return 0.5 * (1 + erf((log(tokens) - PRIOR_LOG_MEDIAN) / (PRIOR_LOG_SD * sqrt(2))))

    shares = [below(high) - below(low) for low, high in pairwise(EDGES)]
    total = sum(shares)
    return [share / total for share in shares]


PRIOR_SHARES = _prior_shares()


#: One distribution: shares, `LengthTable.curve`, P(Y <= left edge), E[Y; Y <= left edge], density.
Derived = tuple[list[float], np.ndarray, list[float], list[float], list[float]]


def derived_of(shares: np.ndarray) -> list[Derived]:
    """Curve, sums and densities of each row of (M, BINS) shares."""
    curves = np.zeros((len(shares), 2, BINS + 1))
    below_mean = np.zeros((len(shares), BINS + 1))
    np.cumsum(shares, axis=1, out=curves[:, 0, 1:])
    np.cumsum(shares * _MIDDLES, axis=1, out=below_mean[:, 1:])
    np.multiply(shares, _PER_WIDTH, out=curves[:, 1, :-1])
    lists = (each.tolist() for each in (curves[:, 0], below_mean, curves[:, 1]))
    return list(zip(shares.tolist(), curves, *lists, strict=True))


class LengthTable:
    """A distribution of output length Y in tokens, given by the shares of the bins.

    `p50`, `p90`, `p95` and `mean` assume no cap. `curve` (2, BINS + 1) holds P(Y <= left edge) of each bin, 1 after the
    last bin, and the density inside each bin.
    """

    __slots__ = ("_below", "_below_mean", "_density", "curve", "mean", "p50", "p90", "p95", "shares")

    shares: list[float]
    mean: float
    p50: float
    p90: float
    p95: float
    curve: np.ndarray
    _below: list[float]
    _below_mean: list[float]
    _density: list[float]

    def __init__(self, shares: Sequence[float]) -> None:
        self.take(derived_of(np.array([shares]))[0])

    @classmethod
    def of_each(cls, shares: np.ndarray) -> list[LengthTable]:
        """One table for each row of (M, BINS) shares; cheaper than making them one by one."""
        tables = []
        for derived in derived_of(shares):
            table = cls.__new__(cls)
            table.take(derived)
            tables.append(table)
        return tables

    def take(self, derived: Derived) -> None:
        """Replace the content by this distribution."""
        self.shares, self.curve, self._below, self._below_mean, self._density = derived
        self.mean = self._below_mean[-1]
        self.p50 = self.quantile(0.5)
        self.p90 = self.quantile(0.9)
        self.p95 = self.quantile(0.95)

    def below(self, tokens: float) -> float:
        """P(Y <= tokens)."""
        if tokens <= 0.5:
            return 0.0
        at = bisect_right(EDGES, tokens) - 1
        if at >= BINS:
            return 1.0
        return self._below[at] + (tokens - EDGES[at]) * self._density[at]

    def mean_below(self, cap_tokens: float) -> float:
        """E[min(Y, cap)] in tokens."""
        at = bisect_right(EDGES, cap_tokens) - 1
        if at >= BINS:
            return self.mean
        if at < 0:
            return cap_tokens
        low = EDGES[at]
        inside = (cap_tokens - low) * self._density[at]  # P(low < Y <= cap)
        return (
            self._below_mean[at]
            + inside * (low + cap_tokens) / 2
            + (1.0 - self._below[at] - inside) * cap_tokens
        )

    def quantile(self, probability: float) -> float:
        """The length in tokens that Y does not exceed with this probability."""
        at = min(max(bisect_right(self._below, probability) - 1, 0), BINS - 1)
        density = self._density[at]
        if density <= 0.0:
            return EDGES[at]
        return min(EDGES[at] + (probability - self._below[at]) / density, EDGES[at + 1])
