"""Corrects one model's predicted quality by feedback, in log-odds: one shift for the model, one for each cluster of
prompts.

With little feedback each shift stays close to 0; it is always bounded.
"""

from __future__ import annotations

from predictors.online.forecast import logit, sigmoid

_INERTIA = 20.0
_MEMORY = 500.0
#: The largest shift in logits, for the model and for a cluster each.
_MOST_SHIFT = 2.5


class QualityFeedback:
    """The feedback on one model's answers."""

    __slots__ = ("_clusters", "_shift", "count")

    def __init__(self) -> None:
        self.count = 0  # number of judgements so far
        self._shift = 0.0
        self._clusters: dict[int, tuple[float, float]] = {}  # count, and shift beyond the model's

    def corrected(self, quality: float, cluster: int | None) -> float:
        """The quality to use. `cluster` is None if the prompt has none."""
        if not self.count:
            return quality
        moved = logit(quality) + self._shift
        if cluster is not None and cluster in self._clusters:
            moved += self._clusters[cluster][1]
        return sigmoid(moved)

    def observe(self, predicted: float, cluster: int | None, quality: float) -> None:
        """An answer with the uncorrected prediction `predicted` was judged `quality`. One step of logistic regression on
        an intercept for the model and, after that, on one for the cluster."""
        self.count += 1
        base = logit(predicted)
        self._shift = _bounded(self._shift + _step(quality, base + self._shift, min(self.count, _MEMORY)))
        if cluster is not None:
            count, shift = self._clusters.get(cluster, (0.0, 0.0))
            count = min(count + 1.0, _MEMORY)
            shift += _step(quality, base + self._shift + shift, count)
            self._clusters[cluster] = (count, _bounded(shift))


def _step(quality: float, logit: float, count: float) -> float:
    expected = sigmoid(logit)
    return (quality - expected) / (max(expected * (1.0 - expected), 0.05) * (count + _INERTIA))


def _bounded(shift: float) -> float:
    return min(max(shift, -_MOST_SHIFT), _MOST_SHIFT)
