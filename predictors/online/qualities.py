"""Learns the quality of answers: the final value combines the fleet file's quality, the relevance model's, and
feedback.

Feedback moves a predicted quality in log-odds: by one shift for the model, and by one for each cluster of prompts. With little
feedback each shift stays close to 0; it is always bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from predictors.learned.models import Models
from predictors.online.fleet_stats import FleetStats
from predictors.online.forecast import PromptForecast, Quality, blended, logit, sigmoid
from predictors.online.learner import Learner
from predictors.online.observation import Count, Several, Share
from router.core.types import Candidate, PromptFeatures

#: The most judgements of one model that are kept until the model is in the fleet.
_MOST_WAITING = 1000
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


@dataclass(slots=True)
class AnswerJudged:
    """An answer of `model` to a prompt with these features (`router.core.types.PromptFeatures`) was judged."""

    model: str
    head: Several[Count]
    tail: Several[Count]
    counts: Several[Count]
    quality: Share


class Qualities(Learner[AnswerJudged]):
    """Feedback by model. It corrects `predictors.online.forecast.blended`. A judgement does not name the instance, so
    it counts for the mean of the fleet file's qualities of the model's instances."""

    observations = (AnswerJudged,)

    def __init__(self, stats: FleetStats) -> None:
        super().__init__(stats)
        self._feedback: dict[str, QualityFeedback] = {}
        self._priors: dict[str, dict[str, float | None]] = {}  # by model and instance
        self._waiting: dict[str, deque[AnswerJudged]] = {}

    def predict(self, forecast: PromptForecast, features: PromptFeatures, models: Sequence[str]) -> None:
        """Add the relevance model's predictions for these models, which it knows, to the forecast."""
        relevance = self.stats.models.relevance
        if relevance is not None:
            means, deviations, forecast.cluster, forecast.trust = relevance.quality(features, models)
            both = zip(means.tolist(), deviations.tolist(), strict=True)
            forecast.learned.update(zip(models, both, strict=True))

    def of(self, candidate: Candidate, forecast: PromptForecast | None) -> Quality:
        """The final quality."""
        model, prior = candidate.model, candidate.quality
        if forecast is None or model not in forecast.learned:
            cluster = None if forecast is None else forecast.cluster
            return self._corrected(model, (prior, None), cluster) if self._feedback else (prior, None)
        found = forecast.quality.get((model, prior))
        if found is None:
            expected = blended(prior, forecast.learned[model], forecast.trust)
            found = forecast.quality[model, prior] = self._corrected(model, expected, forecast.cluster)
        return found

    def _corrected(self, model: str, expected: Quality, cluster: int | None) -> Quality:
        feedback, (quality, deviation) = self._feedback.get(model), expected
        if feedback is None or quality is None:
            return expected
        return feedback.corrected(quality, cluster), deviation

    def apply(self, observation: AnswerJudged, now: float) -> None:
        model = observation.model
        stated = self._priors.get(model)
        if stated is None:  # as at a start, when feedback is read from the records
            self._waiting.setdefault(model, deque(maxlen=_MOST_WAITING)).append(observation)
            return
        priors = [prior for prior in stated.values() if prior is not None]
        forecast = PromptForecast()
        features = PromptFeatures(observation.head, observation.tail, observation.counts)
        relevance = self.stats.models.relevance
        if relevance is not None and relevance.knows(model):
            self.predict(forecast, features, [model])
        expected, _ = blended(fmean(priors) if priors else None, forecast.learned.get(model), forecast.trust)
        if expected is not None:
            self._feedback.setdefault(model, QualityFeedback()).observe(
                expected, forecast.cluster, observation.quality
            )

    def counts(self) -> dict[str, int]:
        """By model: the number of judgements that correct its quality, now or when the model joins."""
        waiting = {model: len(judged) for model, judged in self._waiting.items()}
        return waiting | {model: feedback.count for model, feedback in self._feedback.items()}

    def joins(self, candidate: Candidate) -> None:
        """Learn the judgements from before the model was known."""
        self._priors.setdefault(candidate.model, {})[candidate.instance] = candidate.quality
        for observation in self._waiting.pop(candidate.model, ()):
            self.apply(observation, 0.0)

    def forget(self, instances: Collection[str]) -> None:
        """What was learned about the instances' models stays."""
        for model, stated in list(self._priors.items()):
            for instance in instances:
                stated.pop(instance, None)
            if not stated:
                del self._priors[model]

    def use(self, models: Models) -> None:
        """Drop the feedback, because its clusters are those of the earlier model."""
        self._feedback.clear()
