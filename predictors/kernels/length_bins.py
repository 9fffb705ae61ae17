"""The bins of output length, and the prior of all lengths.

The bins are single tokens up to 8, then four bins an octave.

The prior is log-normal with median 182 tokens and log standard deviation 0.91: the fit to equal parts of
the Azure LLM inference trace of 2023 (conversations), ShareGPT answers and ZeroEval answers (51 models),
which have p10 / p50 / p90 of 64 / 183 / 508 tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import erf, log, sqrt

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


def bin_of(tokens: float) -> int:
    """The bin of a length."""
    at = bisect_right(EDGES, float(tokens)) - 1
    return 0 if at < 0 else (BINS - 1 if at >= BINS else at)


def _prior_shares() -> list[float]:
    def below(tokens: float) -> float:
        return 0.5 * (1 + erf((log(tokens) - PRIOR_LOG_MEDIAN) / (PRIOR_LOG_SD * sqrt(2))))

    shares = [below(high) - below(low) for low, high in pairwise(EDGES)]
    total = sum(shares)
    return [share / total for share in shares]


PRIOR_SHARES = _prior_shares()
