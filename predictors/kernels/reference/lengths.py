"""Distributions of output length, the length of one answer, and what corrects a trained model's distributions.

A trained model knows prompts; the fleet's own answers show the fleet's lengths. They are combined:

    p(y | prompt) ~ w * learned(y / s | prompt) * seen(y) / expected(y) + (1 - w) * online(y)

`s` is the ratio of this fleet's answers to the learned model's predictions (an exponential mean of logs). `seen` and
`expected` are the observed frequencies of lengths and those that the learned model expected. They turn its distribution
over all prompts into the fleet's (a correction for prior shift: Saerens et al., Neural Computation 14, 2002). `w` is
the posterior weight of the learned model against the fleet's histogram, from their fading log-likelihoods. If prompts
have no effect on lengths (an emulated engine), the histogram gets all the weight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np

from predictors.kernels.length_bins import BINS, EDGES, bin_of
from router.compiled import compiled_init
from router.core.types import Candidate, Request

#: The weight of the learned model's own marginal, in pseudo-observations.
INERTIA = 16.0
MAX_WEIGHT = 2048.0
#: Log odds of the learned model before any observation, and how quickly evidence fades.
PRIOR_LOG_ODDS = 2.2
EVIDENCE_MEMORY = 0.98
MOST_EVIDENCE = 30.0
#: Shares are compared over neighbouring bins: single bins have too few observations.
_KERNEL = np.array([1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]) / 16.0

SCALE_MEMORY = 256
LEAST_SHARE = 1e-9
#: A smaller difference of scale is ignored.
LEAST_LOG_SCALE = 0.02
_EDGES = np.array(EDGES)
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2
_PER_WIDTH = 1 / np.diff(_EDGES)


class LengthTable:
    """A distribution of output length Y in tokens, given by the shares of the bins.

    `p50`, `p90`, `p95` and `mean` assume no cap. `curve` (2, BINS + 1) holds P(Y <= left edge) of each bin, 1 after the
    last bin, and the density inside each bin.
    """

    __slots__ = ("_below", "_below_mean", "_density", "curve", "mean", "p50", "p90", "p95", "shares")

    shares: np.ndarray
    mean: float
    p50: float
    p90: float
    p95: float
    curve: np.ndarray
    _below: list[float]
    _below_mean: list[float]
    _density: list[float]

    def __init__(self, shares: Sequence[float] | np.ndarray) -> None:
        self.take(shares)

    def take(self, shares: Sequence[float] | np.ndarray) -> None:
        """Become the distribution with these shares (BINS,)."""
        self.shares = np.asarray(shares, float)
        self.curve = np.zeros((2, BINS + 1))
        np.cumsum(self.shares, out=self.curve[0, 1:])
        np.multiply(self.shares, _PER_WIDTH, out=self.curve[1, :-1])
        self._below, self._density = self.curve.tolist()
        self._below_mean = [0.0, *np.cumsum(self.shares * _MIDDLES).tolist()]
        self.mean = self._below_mean[-1]
        self.p50 = self.quantile(0.5)
        self.p90 = self.quantile(0.9)
        self.p95 = self.quantile(0.95)

    def below(self, at: int) -> float:
        """P(Y <= left edge of this bin)."""
        return self._below[at]

    def share_of(self, tokens: float) -> float:
        """P(Y <= tokens), for a number of tokens from 1 on."""
        at = bisect_right(EDGES, tokens) - 1
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


# --- the answer to a request ---------------------------------------------------------------------------
@compiled_init
class AnswerLength(NamedTuple):
    """Tokens of min(Y, cap). `p50`, `p90` and `mean` are of one choice, `long_*` of the longest of all `choices`, which
    decides when the answer ends. `usual_mean` is the mean of the model's other answers, `usual_capped` their mean under
    this cap."""

    table: LengthTable
    cap: int | None
    choices: int
    p50: float
    p90: float
    mean: float
    long_p50: float
    long_p95: float
    long_mean: float
    usual_mean: float
    usual_capped: float


def output_cap(request: Request, candidate: Candidate) -> int | None:
    """The most tokens of one choice: the request's limit, and the room that its prompt leaves in the context."""
    cap = request.max_tokens
    if candidate.context_tokens is None:
        return cap
    room = candidate.context_tokens - (request.longest_prompt_tokens or request.prompt_tokens)
    room = room if room > 1 else 1
    return room if cap is None or cap > room else cap


def answer_length(table: LengthTable, cap: int | None, choices: int, usual: LengthTable) -> AnswerLength:
    """The distribution under a cap. `usual` is the distribution of the model's other answers."""
    p50, p90, mean = table.p50, table.p90, table.mean
    if cap is not None:
        mean = table.mean_below(cap)
        p50, p90 = min(p50, cap), min(p90, cap)
    long_p50, long_p95, long_mean = p50, table.p95, mean
    if choices > 1:
        # The quantile at u of the longest is one choice's at u ** (1 / n).
        long_p50 = table.quantile(0.5 ** (1 / choices))
        long_p95 = table.quantile(0.95 ** (1 / choices))
        if cap is not None:
            long_p50 = min(long_p50, cap)
        long_mean = max(long_mean, long_p50)
    if cap is not None:
        long_p95 = min(long_p95, cap)
    capped = usual.mean if cap is None else usual.mean_below(cap)
    return AnswerLength(
        table, cap, choices, p50, p90, mean, long_p50, long_p95, long_mean, usual.mean, capped
    )


# --- a trained model's lengths --------------------------------------------------------------------------
def _median(shares: np.ndarray) -> float:
    below = np.cumsum(shares)
    at = int(np.searchsorted(below, 0.5 * below[-1]))
    return float(max(1.0, 0.5 * (_EDGES[at] + _EDGES[min(at + 1, BINS)])))


class LearnedLengths:
    """The correction of a learned length distribution for one model of the fleet."""

    __slots__ = ("_expected", "_observed", "_seen", "_weight", "evidence", "log_scale", "ratio")

    def __init__(self) -> None:
        self._seen = np.zeros(BINS)
        self._expected = np.zeros(BINS)
        self._weight = 0.0
        self.ratio = np.ones(BINS)  # the ratio of observed to expected frequencies
        self.evidence = 0.0
        self.log_scale = 0.0
        self._observed = 0

    @property
    def weight(self) -> float:
        """The weight of the learned model in [0, 1]; the rest is the histogram's."""
        return 1.0 / (1.0 + exp(-(PRIOR_LOG_ODDS + self.evidence)))

    def observe(self, predicted: np.ndarray, online: LengthTable, tokens: int, censored: bool) -> int:
        """Learn from an answer of `tokens`, for which the model had predicted the shares `predicted` (BINS,). `censored`: it
        stopped at its cap. Returns its bin."""
        at = bin_of(tokens)
        scaled, corrected = self.corrected(predicted)
        if censored:
            ours, theirs = corrected[at:].sum(), online.shares[at:].sum()
        else:
            ours, theirs = corrected[at], online.shares[at]
        evidence = EVIDENCE_MEMORY * self.evidence + log(max(ours, 1e-9) / max(theirs, 1e-9))
        self.evidence = max(-MOST_EVIDENCE, min(MOST_EVIDENCE, evidence))
        if self._weight >= MAX_WEIGHT:
            self._seen *= 0.5
            self._expected *= 0.5
            self._weight *= 0.5
        self._weight += 1.0
        self._expected += scaled
        if censored:
            self._seen[at:] += corrected[at:] / max(corrected[at:].sum(), 1e-12)
        else:
            self._seen[at] += 1.0
        prior = INERTIA / self._weight * self._expected
        seen = np.convolve(self._seen + prior, _KERNEL, "same")
        expected = np.convolve(self._expected + prior, _KERNEL, "same")
        self.ratio = seen / np.maximum(expected, 1e-12)
        self._observed += 1
        rate = 1.0 / (min(self._observed, SCALE_MEMORY) + INERTIA)
        error = log(max(tokens, 1) / _median(scaled))
        self.log_scale += rate * (max(error, 0.0) if censored else error)
        return at

    def corrected(self, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(BINS,) twice: the prediction stretched by the scale, and the same corrected by the observed frequencies."""
        scaled = predicted
        if abs(self.log_scale) >= LEAST_LOG_SCALE:
            below = np.concatenate(([0.0], np.cumsum(predicted)))
            moved = np.interp(_EDGES * exp(-self.log_scale), _EDGES, below)
            moved[0], moved[-1] = 0.0, below[-1]
            scaled = np.diff(moved) + LEAST_SHARE
        corrected = scaled * self.ratio
        return scaled, corrected / corrected.sum()


def served_tables(
    learned: Sequence[LearnedLengths], predicted: np.ndarray, online: Sequence[LengthTable]
) -> list[LengthTable]:
    """The final distributions of M models for which a trained model predicted `predicted` (M, BINS)."""
    if not len(predicted) == len(learned) == len(online):
        raise ValueError("columns of different lengths")
    return [
        LengthTable(each.weight * each.corrected(row)[1] + (1.0 - each.weight) * usual.shares)
        for each, row, usual in zip(learned, predicted, online, strict=True)
    ]
