"""How good each candidate's answer is expected to be: the fleet file's word, the relevance model's, and feedback."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from predictors.online.outlook import Learned, Outlook, Quality, QualityFeedback, blended
from router.core.types import Candidate, PromptFeatures

if TYPE_CHECKING:
    from predictors.learned.relevance import RelevanceModel

#: Judgements of one model that wait at the most until it is known what the fleet file says of it.
_MOST_WAITING = 1000


class Qualities:
    """Feedback by model, corrections of what `predictors.online.outlook.blended` gives. Judgements do not tell the instance:
    they are taken to be of the mean of what the fleet file says of the model's instances."""

    def __init__(self, relevance: RelevanceModel | None) -> None:
        self._relevance = relevance
        self._feedback: dict[str, QualityFeedback] = {}
        self._priors: dict[str, dict[str, float | None]] = {}  # by model and instance
        self._waiting: dict[str, deque[tuple[PromptFeatures, float]]] = {}

    def use(self, relevance: RelevanceModel | None) -> None:
        """Ask this model from now on. Feedback is dropped: its clusters were those of the one before."""
        self._relevance = relevance
        self._feedback.clear()

    def look(self, outlook: Outlook, features: PromptFeatures, models: Sequence[str]) -> None:
        """Take up in the outlook what the relevance model says of these models."""
        relevance = self._relevance
        known = [] if relevance is None else [model for model in models if relevance.knows(model)]
        if relevance is not None and known:
            means, deviations, outlook.cluster, outlook.trust = relevance.quality(features, known)
            for model, mean, deviation in zip(known, means.tolist(), deviations.tolist(), strict=True):
                outlook.learned[model] = Learned(mean, deviation)

    def of(self, candidate: Candidate, outlook: Outlook | None) -> Quality:
        """What serves."""
        model, prior = candidate.model, candidate.quality
        if outlook is None:
            return self._corrected(model, (prior, None), None) if self._feedback else (prior, None)
        found = outlook.quality.get((model, prior))
        if found is None:
            expected = blended(prior, outlook.learned.get(model), outlook.trust)
            found = outlook.quality[model, prior] = self._corrected(model, expected, outlook.cluster)
        return found

    def _corrected(self, model: str, expected: Quality, cluster: int | None) -> Quality:
        feedback, (quality, deviation) = self._feedback.get(model), expected
        if feedback is None or quality is None:
            return expected
        return feedback.corrected(quality, cluster), deviation

    def serves(self, candidate: Candidate) -> None:
        """Such a candidate is in the fleet: what was judged before it was known is learned."""
        self._priors.setdefault(candidate.model, {})[candidate.instance] = candidate.quality
        for features, quality in self._waiting.pop(candidate.model, ()):
            self.observe(candidate.model, features, quality)

    def observe(self, model: str, features: PromptFeatures, quality: float) -> None:
        """Feedback: an answer of `model` to such a prompt was judged `quality`, 0 to 1."""
        stated = self._priors.get(model)
        if stated is None:  # as at a start, when feedback comes from the records
            self._waiting.setdefault(model, deque(maxlen=_MOST_WAITING)).append((features, quality))
            return
        priors = [prior for prior in stated.values() if prior is not None]
        outlook = Outlook()
        self.look(outlook, features, [model])
        expected, _ = blended(fmean(priors) if priors else None, outlook.learned.get(model), outlook.trust)
        if expected is not None:
            self._feedback.setdefault(model, QualityFeedback()).observe(expected, outlook.cluster, quality)

    def counts(self) -> dict[str, int]:
        """By model: judgements that correct its quality, or will."""
        waiting = {model: len(judged) for model, judged in self._waiting.items()}
        return waiting | {model: feedback.count for model, feedback in self._feedback.items()}

    def forget(self, instance: str) -> None:
        """The instance has left the fleet. What was learned of its models stays."""
        for model, stated in list(self._priors.items()):
            stated.pop(instance, None)
            if not stated:
                del self._priors[model]
