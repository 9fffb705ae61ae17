"""How long answers get: one distribution of output lengths per model, learned online.

A length is kept in a histogram over logarithmic bins (single tokens up to 8, then four bins an octave).
A model with few observations leans on its family, a family on the prior, each by `_BORROWED_WEIGHT`
pseudo-observations. Old observations fade (all counts are halved at `_MAX_WEIGHT`).

The prior is log-normal with median 182 tokens and log standard deviation 0.91: the fit to equal parts of
the Azure LLM inference trace of 2023 (conversations), ShareGPT answers and ZeroEval answers (51 models),
which have p10 / p50 / p90 of 64 / 183 / 508 tokens.

An answer that stopped at its cap only tells that it would have been at least that long. Its weight is
spread over the bins above the cap in proportion to what the distribution expects there (the
self-consistent estimate of Efron, 1967).
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

_BORROWED_WEIGHT = 8.0
_MAX_WEIGHT = 4096.0
_LARGEST_TOKENS = 262_144.0
#: Derived tables may lag behind by this share of the observations, and by at most so many.
_LAG, _MOST_LAG = 1 / 16, 128


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


#: Of one distribution: shares, `LengthTable.curve`, P(Y <= left edge), E[Y; Y <= left edge], density.
_Derived = tuple[list[float], np.ndarray, list[float], list[float], list[float]]


def _derived(shares: np.ndarray) -> list[_Derived]:
    """What follows from each row of (M, BINS) shares."""
    curves = np.zeros((len(shares), 2, BINS + 1))
    below_mean = np.zeros((len(shares), BINS + 1))
    np.cumsum(shares, axis=1, out=curves[:, 0, 1:])
    np.cumsum(shares * _MIDDLES, axis=1, out=below_mean[:, 1:])
    np.multiply(shares, _PER_WIDTH, out=curves[:, 1, :-1])
    lists = (each.tolist() for each in (curves[:, 0], below_mean, curves[:, 1]))
    return list(zip(shares.tolist(), curves, *lists, strict=True))


class LengthTable:
    """A distribution of output length Y in tokens, given by the shares of the bins.

    `p50`, `p90`, `p95`, `mean` are without a cap. `curve` (2, BINS + 1) has P(Y <= left edge) of each bin and
    beyond the last, and the density in it.
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
        self._take(_derived(np.array([shares]))[0])

    @classmethod
    def of_each(cls, shares: np.ndarray) -> list[LengthTable]:
        """One for each row of (M, BINS) shares: cheaper than one by one."""
        made = []
        for derived in _derived(shares):
            table = cls.__new__(cls)
            table._take(derived)
            made.append(table)
        return made

    def _take(self, derived: _Derived) -> None:
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
        """Length in tokens that Y stays below with the given probability."""
        at = min(max(bisect_right(self._below, probability) - 1, 0), BINS - 1)
        density = self._density[at]
        if density <= 0.0:
            return EDGES[at]
        return min(EDGES[at] + (probability - self._below[at]) / density, EDGES[at + 1])


class LengthDistribution(LengthTable):
    """Distribution of one model's (or family's) output length, learned online.

    `parent` lends shares until there is own data. The derived tables are refreshed now and then, not at
    each observation.
    """

    __slots__ = ("_censored", "_counts", "_stale", "_weight", "observed", "parent")

    def __init__(self, parent: LengthDistribution | None = None) -> None:
        self.parent = parent
        self.observed = 0  # answers seen, ever
        self.shares = PRIOR_SHARES
        self._counts = [0.0] * BINS
        self._censored: dict[int, float] = {}  # not yet spread: 1 / P(Y > left edge), summed by bin
        self._weight = 0.0
        self._stale = 0
        self._refresh()

    def observe(self, tokens: int, *, censored: bool = False) -> None:
        """Learn from an answer of `tokens`; `censored` says that it was cut there."""
        self.observe_bin(bin_of(tokens), censored)

    def observe_bin(self, at: int, censored: bool) -> None:
        """`observe` for whoever has found the bin already."""
        self.observed += 1
        if self._weight >= _MAX_WEIGHT:
            self._refresh()
            self._counts = [count / 2 for count in self._counts]
            self._weight /= 2
        self._weight += 1.0
        above = 1.0 - self._below[at] if censored else 0.0
        if above > 1e-9:
            self._censored[at] = self._censored.get(at, 0.0) + 1.0 / above
        else:
            self._counts[at] += 1.0
        self._stale = stale = self._stale + 1
        if stale >= _MOST_LAG or stale > self.observed * _LAG:
            self._refresh()

    def _spread_censored(self) -> None:
        """Spread the weight of cut answers over the bins above their caps, by the shares known so far."""
        weight = 0.0
        for at in range(min(self._censored), BINS):
            weight += self._censored.get(at, 0.0)
            self._counts[at] += self.shares[at] * weight
        self._censored.clear()

    def _refresh(self) -> None:
        if self._censored:
            self._spread_censored()
        borrowed = self.parent.shares if self.parent is not None else PRIOR_SHARES
        scale = 1.0 / (self._weight + _BORROWED_WEIGHT)
        shares = [
            (count + _BORROWED_WEIGHT * share) * scale
            for count, share in zip(self._counts, borrowed, strict=True)
        ]
        self._take(_derived(np.array([shares]))[0])
        self._stale = 0
