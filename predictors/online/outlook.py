"""What is worked out of a prompt once a request: how long each model's answer may get, and how good.

The fleet file's word on a quality and the relevance model's are blended by how far the prompt is like those that
the latter has learned from:

    logit(quality) = (1 - trust) * logit(fleet file's) + trust * logit(learned)

The blend moves with feedback: in logits, for each model and for its cluster of prompts, each drawn towards
nothing while little is known.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

from predictors.online.length import LengthTable
from predictors.online.model_lengths import Shares

_FEEDBACK_INERTIA = 20.0
_FEEDBACK_MEMORY = 500.0
_MOST_LOGIT = 6.0
_LEAST_SHARE = 0.0025
#: Feedback moves a quality by this many logits at the most, for a model and for a cluster each.
_MOST_SHIFT = 2.5


class Learned(NamedTuple):
    """What the relevance model says of one model's answer: mean quality and its standard deviation."""

    mean: float
    deviation: float


#: Mean and standard deviation; None where nothing is known. A prior alone has no deviation.
Quality = tuple[float | None, float | None]


def blended(prior: float | None, learned: Learned | None, trust: float) -> Quality:
    """The quality that is expected before feedback. The blend deviates by as much as the learned part of it does."""
    if learned is None or (prior is not None and trust <= 0.0):
        return prior, None
    mean, deviation = learned
    if prior is None:
        return mean, deviation
    quality = _share((1.0 - trust) * _logit(prior) + trust * _logit(mean))
    return quality, deviation * trust * quality * (1.0 - quality) / max(mean * (1.0 - mean), _LEAST_SHARE)


class QualityFeedback:
    """What feedback says of one model's predicted quality."""

    __slots__ = ("_clusters", "_count", "_shift", "count")

    def __init__(self) -> None:
        self.count = 0  # ever
        self._count = 0.0
        self._shift = 0.0
        self._clusters: dict[int, tuple[float, float]] = {}  # count and shift beyond the model's

    def corrected(self, quality: float, cluster: int | None) -> float:
        """The quality to serve; the cluster is None where the prompt tells none."""
        if not self._count:
            return quality
        logit = _logit(quality) + self._shift
        if cluster is not None and cluster in self._clusters:
            logit += self._clusters[cluster][1]
        return _share(logit)

    def observe(self, predicted: float, cluster: int | None, quality: float) -> None:
        """An answer was judged `quality` where `predicted` (uncorrected) had been expected. One step of
        logistic regression on an intercept for the model and, once that is known, one for its cluster."""
        self.count += 1
        self._count = min(self._count + 1.0, _FEEDBACK_MEMORY)
        base = _logit(predicted)
        self._shift = _bounded(self._shift + _step(quality, base + self._shift, self._count))
        if cluster is not None:
            count, shift = self._clusters.get(cluster, (0.0, 0.0))
            count = min(count + 1.0, _FEEDBACK_MEMORY)
            shift += _step(quality, base + self._shift + shift, count)
            self._clusters[cluster] = (count, _bounded(shift))


def _step(quality: float, logit: float, count: float) -> float:
    expected = _share(logit)
    return (quality - expected) / (max(expected * (1.0 - expected), 0.05) * (count + _FEEDBACK_INERTIA))


def _bounded(shift: float) -> float:
    return min(max(shift, -_MOST_SHIFT), _MOST_SHIFT)


def _logit(share: float) -> float:
    share = min(max(share, _LEAST_SHARE), 1.0 - _LEAST_SHARE)
    return log(share / (1.0 - share))


def _share(logit: float) -> float:
    return 1.0 / (1.0 + exp(-min(max(logit, -_MOST_LOGIT), _MOST_LOGIT)))


class Outlook:
    """What a request's prompt lets expect, by model. `predicted` are the length model's own shares, `learned` is what
    the relevance model says, with its `trust` in that. `quality` is what serves, by model and its fleet file's
    quality."""

    __slots__ = ("cluster", "learned", "predicted", "quality", "tables", "trust")

    def __init__(self) -> None:
        self.predicted: dict[str, Shares] = {}
        self.tables: dict[str, LengthTable] = {}
        self.learned: dict[str, Learned] = {}
        self.trust = 0.0
        self.cluster: int | None = None
        self.quality: dict[tuple[str, float | None], Quality] = {}
