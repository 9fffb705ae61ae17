"""Partial pooling: the mean quality of each head in each part of the prompts, from its answers there and from all others.

In log-odds a mean is the part's level + the head's effect + a rest. How much the rests differ beyond what their few
answers explain is estimated from all cells together (an empirical Bayes estimate, by Paule and Mandel's moments; Journal
of Research of the NBS 87, 1982). Each rest is then shrunk towards 0, the more the fewer answers it is from. So a head is
not preferred in a part because of luck there, and a head that only hard prompts were given to is not called a bad one.
"""

from __future__ import annotations

import numpy as np

from predictors.training.relevance_labels import Labels

#: Levels and effects are drawn towards their mean with the precision of two answers.
_PRECISION = 0.5
_ROUNDS = 30
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
    variance = 0.1 if free > 0 else 0.0
    for _ in range(_ROUNDS):
        expected = _additive(observed, precision / (1.0 + variance * precision))
        rest = np.where(answers > 0, observed - expected, 0.0)
        if variance <= _LEAST_VARIANCE:
            break
        variance *= float((precision / (1.0 + variance * precision) * rest**2).sum()) / free
    share = variance * precision / (1.0 + variance * precision)
    return np.asarray(expected + share * rest)


def _additive(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(parts, H) of level + effect, by alternating weighted means."""
    centre = float((weights * values).sum() / max(weights.sum(), 1e-9))
    levels, effects = np.zeros((len(values), 1)), np.zeros(values.shape[1])
    for _ in range(_ROUNDS):
        left = weights * (values - centre - effects)
        levels = left.sum(axis=1, keepdims=True) / (weights.sum(axis=1, keepdims=True) + _PRECISION)
        left = weights * (values - centre - levels)
        effects = left.sum(axis=0) / (weights.sum(axis=0) + _PRECISION)
    return centre + levels + effects
