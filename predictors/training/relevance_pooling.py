"""Partial pooling: the mean quality of each head in each part of the prompts, from its answers there and from all others.

In log-odds a mean is the head's effect + the part's level + a rest. How much the rests differ beyond what their few
answers explain is estimated from all cells together (an empirical Bayes estimate, by Paule and Mandel's moments; Journal
of Research of the NBS 87, 1982). Each rest is then shrunk towards 0, the more the fewer answers it is from; the levels in
the same way. So a head is not preferred in a part because of luck there, and a head that only hard prompts were given to
is not called a bad one.
"""

from __future__ import annotations

import numpy as np

from predictors.training.relevance_labels import Labels

#: Levels and effects are drawn towards their mean with the precision of two answers.
_PRECISION = 0.5
_ROUNDS = 30
_FIRST_VARIANCE = 0.1
_LEAST_VARIANCE = 1e-6


def pooled_departures(
    labels: Labels, rows: np.ndarray, part: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(log-odds of each head's mean over all parts of its scale (H,), departures from it in each part (count, H)) from
    some rows; `part` is each row's, below `count`."""
    quality = labels.quality[rows]
    prior = np.zeros(quality.shape[1])
    departures = np.zeros((count, quality.shape[1]))
    for scale in range(len(labels.scales)):
        heads = labels.heads_on(scale)
        rated = (~np.isnan(quality[:, heads])).any(axis=1)
        if not rated.any():
            continue
        found, places = np.unique(part[rated], return_inverse=True)
        table = _pooled(quality[np.ix_(rated, heads)], places, len(found))
        mean = np.bincount(places) / len(places) @ (1.0 / (1.0 + np.exp(-table)))
        prior[heads] = np.log(mean / (1.0 - mean))
        departures[np.ix_(found, heads)] = table - prior[heads]
    return prior, departures


def _pooled(quality: np.ndarray, part: np.ndarray, count: int) -> np.ndarray:
    """(count, H) log-odds, from qualities (P, H) of prompts in parts."""
    answers, total = np.zeros((2, count, quality.shape[1]))
    np.add.at(answers, part, ~np.isnan(quality))
    np.add.at(total, part, np.nan_to_num(quality))
    mean = (total + 0.5) / (answers + 1.0)
    observed = np.log(mean / (1.0 - mean))
    precision = answers * mean * (1.0 - mean)  # of each cell's log-odds
    free = int((answers > 0).sum()) - count - quality.shape[1] + 1
    variance = _FIRST_VARIANCE if free > 0 else 0.0
    for _ in range(_ROUNDS):
        levels, effects = _additive(observed, precision / (1.0 + variance * precision))
        rest = np.where(answers > 0, observed - levels - effects, 0.0)
        variance = _next_variance(variance, rest, precision, free)
    # The heads of a part answered the same prompts, so its level is known no better than one of its cells.
    known = precision.sum(axis=1, keepdims=True) / np.maximum((answers > 0).sum(axis=1, keepdims=True), 1)
    of_levels = _FIRST_VARIANCE if count > 1 else 0.0
    for _ in range(_ROUNDS):
        of_levels = _next_variance(of_levels, levels, known, count - 1)
    return np.asarray(effects + _credible(of_levels, known) * levels + _credible(variance, precision) * rest)


def _next_variance(variance: float, rest: np.ndarray, precision: np.ndarray, free: int) -> float:
    """A step towards the variance at which what is left is as large as expected."""
    if variance <= _LEAST_VARIANCE:
        return 0.0
    return variance * float((precision / (1.0 + variance * precision) * rest**2).sum()) / free


def _credible(variance: float, precision: np.ndarray) -> np.ndarray:
    """The share of a rest that is more than luck."""
    return np.asarray(variance * precision / (1.0 + variance * precision))


def _additive(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(levels (parts, 1), 0 on average; effects (H,)), by alternating weighted means."""
    centre = float((weights * values).sum() / max(weights.sum(), 1e-9))
    levels, effects = np.zeros((len(values), 1)), np.zeros(values.shape[1])
    for _ in range(_ROUNDS):
        left = weights * (values - centre - effects)
        levels = left.sum(axis=1, keepdims=True) / (weights.sum(axis=1, keepdims=True) + _PRECISION)
        left = weights * (values - centre - levels)
        effects = left.sum(axis=0) / (weights.sum(axis=0) + _PRECISION)
    return levels, centre + effects
