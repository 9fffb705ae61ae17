"""What is worked out of a prompt once a request: how long each model's answer may get, and how good.

A quality moves with feedback: in logits, for each model and for its cluster of prompts, each drawn towards
nothing while little is known.
"""

from __future__ import annotations

from math import exp, log

from predictors.length import LengthTable
from predictors.model_lengths import Shares

_FEEDBACK_INERTIA = 20.0
_FEEDBACK_MEMORY = 500.0
_MOST_LOGIT = 6.0
#: Feedback moves a quality by this many logits at the most, for a model and for a cluster each.
_MOST_SHIFT = 2.5


class QualityFeedback:
    """What feedback says of one model's predicted quality."""

    __slots__ = ("_clusters", "_count", "_shift", "count")

    def __init__(self) -> None:
        self.count = 0  # ever
        self._count = 0.0
        self._shift = 0.0
        self._clusters: dict[int, tuple[float, float]] = {}  # count and shift beyond the model's

    def corrected(self, quality: float, cluster: int) -> float:
        """The quality to serve."""
        if not self._count:
            return quality
        logit = _logit(quality) + self._shift
        if cluster in self._clusters:
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
    share = min(max(share, 0.0025), 0.9975)
    return log(share / (1.0 - share))


def _share(logit: float) -> float:
    return 1.0 / (1.0 + exp(-min(max(logit, -_MOST_LOGIT), _MOST_LOGIT)))


class Outlook:
    """What a request's prompt lets expect, by model. `predicted` are the learned model's own shares."""

    __slots__ = ("cluster", "predicted", "quality", "tables")

    def __init__(self) -> None:
        self.predicted: dict[str, Shares] = {}
        self.tables: dict[str, LengthTable] = {}
        self.quality: dict[str, tuple[float, float]] = {}  # mean and standard deviation
        self.cluster: int | None = None
