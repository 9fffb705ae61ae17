"""Turns the events of attempts into observations, and lets the learners apply them.

For each event, every learner makes its observation and applies it (`predictors.online.learner`), in the order of
`predictors.online.learners`. The observation is also passed to `publish`, which sends it to the other replicas
(`predictors.online.sharing`). Received observations are applied in the same way.

Two things here are not shared: this replica's attempts without a first token, and the accuracy of its own predictions
(`predictors.kernels.reference.calibration.Coverage`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import log
from typing import Any, TypeVar

from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats, PendingTtft
from predictors.online.fleet_stats import FleetStats
from predictors.online.learner import EndEvent, Learner, LossEvent
from predictors.online.learners import LEARNERS
from predictors.online.observation import Observation
from predictors.online.prediction import OnlinePrediction
from predictors.online.qualities import AnswerJudged
from predictors.online.time_errors import LEAST_S, TtftErrors, served
from router.core.interfaces import SentAttempt
from router.core.state import Instance
from router.core.types import Candidate, PromptFeatures, Request

L = TypeVar("L", bound=Learner[Any])
#: An answer whose tokens after the first took less than this part of one engine step came in one piece.
_LEAST_STEPS = 0.05
#: The methods `observe_*` (for one event) and `apply` of one learner.
_Steps = tuple[Callable[[Any], Observation | None], Callable[[Any, float], None]]


class Learning:
    """All that is learned of a fleet. Pure: no clock, no I/O."""

    def __init__(self, models: Models) -> None:
        self.stats = FleetStats(models)
        self._learners: dict[type[Learner[Any]], Any] = {kind: kind(self.stats) for kind in LEARNERS}
        self.stats.on_new = self._joins
        self._on_dispatch = self._steps("observe_dispatch")
        self._on_first_token = self._steps("observe_first_token")
        self._on_end = self._steps("observe_end")
        self._on_loss = self._steps("observe_loss")
        self._appliers: dict[type[Observation], Callable[[Any, float], None]] = {
            kind: learner.apply for learner in self._learners.values() for kind in learner.observations
        }
        #: Called with each observation that is made here (None: nobody gets them).
        self.publish: Callable[[Observation], None] | None = None
        self._ttft = self.learner(TtftErrors)

    def _steps(self, event: str) -> list[_Steps]:
        """The methods of every learner that learns from this event."""
        return [
            (getattr(learner, event), learner.apply)
            for kind, learner in self._learners.items()
            if getattr(kind, event) is not getattr(Learner, event)
        ]

    def _joins(self, candidate: Candidate) -> None:
        for learner in self._learners.values():
            learner.joins(candidate)

    def learner(self, kind: type[L]) -> L:
        """The learner of this class."""
        found: L = self._learners[kind]
        return found

    @property
    def kinds(self) -> Iterable[type[Observation]]:
        """Every kind of observation."""
        return self._appliers.keys()

    def use(self, models: Models) -> None:
        """Use these models from now on. What was learned about the earlier ones is dropped, feedback too. The physical
        estimate's errors and the lengths stay."""
        self.stats.use(models)
        for learner in self._learners.values():
            learner.use(models)

    def forget(self, instances: Collection[str]) -> None:
        """Drop what was learned of instances that left the fleet. Lengths belong to models and stay."""
        self.stats.forget(instances)
        for learner in self._learners.values():
            learner.forget(instances)

    # --- observations --------------------------------------------------------------------------------
    def apply(self, observation: Observation, now: float) -> None:
        """Learn from an observation."""
        self._appliers[type(observation)](observation, now)

    def locate(self, observation: Any, instances: Mapping[str, Instance]) -> bool:
        """Whether the fleet has the instance and the model of a received observation. If so, it can be applied."""
        if not hasattr(observation, "candidate"):
            return any(observation.model in each.candidates for each in instances.values())
        name, model = observation.candidate
        instance = instances.get(name)
        candidate = None if instance is None else instance.candidates.get(model)
        if instance is None or candidate is None:
            return False
        self.stats.of(candidate, instance).instance = instance
        return True

    def _learn(self, event: Any, steps: list[_Steps], now: float) -> None:
        """Let each learner observe the event and apply its observation."""
        publish = self.publish
        for observe, apply in steps:
            observation = observe(event)
            if observation is not None:
                apply(observation, now)
                if publish is not None:
                    publish(observation)

    def _learn_due(self, stats: CandidateStats, now: float) -> None:
        """Learn the TTFTs of a candidate that are known or overdue."""
        while stats.pending and (error := self._ttft.observe_due(stats, now)) is not None:
            p50, p95 = served(error)
            self._ttft.apply(error, now)
            if self.publish is not None:
                self.publish(error)
            stats.coverage.observe_ttft(error.residual, p50, p95)

    # --- events ----------------------------------------------------------------------------------------
    def observe_dispatch(self, attempt: SentAttempt, now: float) -> None:
        """The attempt was sent. From now on it can become overdue."""
        request, candidate, prediction = attempt.request, attempt.candidate, attempt.prediction
        stats = self.stats.candidates.get((candidate.instance, candidate.model))
        if stats is None or not isinstance(prediction, OnlinePrediction):
            return
        stats.instance = attempt.instance
        pending = PendingTtft(request, stats, prediction, now)
        self.stats.attempts[attempt] = pending
        pending.void = not request.engine_streams  # its first token is never seen, so none is late
        stats.pending.append(pending)
        if stats.history is not None and request.engine_streams:
            stats.history.waits(now)
        self._learn(pending, self._on_dispatch, now)
        self._learn_due(stats, now)

    def observe_ttft(self, attempt: SentAttempt, engine_ttft_s: float, now: float) -> None:
        """The first token came `engine_ttft_s` after the dispatch."""
        pending = self.stats.attempts.pop(attempt, None)
        if pending is None:  # the prediction is another predictor's, or the instance was forgotten
            return
        stats = pending.stats
        stats.instance = attempt.instance
        pending.ttft_s = ttft_s = max(engine_ttft_s, LEAST_S)
        pending.actual = log(ttft_s / pending.prediction.estimate.ttft_s)
        if stats.history is not None:
            stats.history.stops_waiting(now - ttft_s)
        self._learn(pending, self._on_first_token, now)
        self._learn_due(stats, now)

    def observe_end(
        self,
        attempt: SentAttempt,
        output_tokens: int,
        max_tokens: int | None,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended with a complete answer. Token counts are the engine's; TPOT is the mean. At `max_tokens` each
        choice was or would have been cut."""
        request, candidate, prediction = attempt.request, attempt.candidate, attempt.prediction
        pending = self.stats.attempts.pop(attempt, None)
        stats = self.stats.candidates.get((candidate.instance, candidate.model))
        own = prediction if isinstance(prediction, OnlinePrediction) else None
        if stats is None:  # the instance has left the fleet: only its model's lengths are learned
            self.stats.lengths.of(candidate.model, candidate.family)
        else:
            stats.instance = attempt.instance
            if pending is not None:
                pending.void = True
                if stats.history is not None and request.engine_streams:
                    stats.history.stops_waiting(pending.dispatched_at)
        has_output = request.decodes and output_tokens >= 1
        tpot_s = _checked_tpot(stats, request, own, output_tokens, tpot_s)
        event = EndEvent(
            attempt, stats, own, pending, output_tokens, max_tokens, prompt_tokens, tpot_s, has_output, now
        )
        self._learn(event, self._on_end, now)
        if stats is None:
            return
        if pending is not None:
            self._learn_due(stats, now)
        if has_output and (most_tokens := prediction.output_tokens_p90) is not None:
            stats.coverage.observe_output(output_tokens <= most_tokens)

    def observe_loss(
        self,
        attempt: SentAttempt,
        waited_s: float,
        decoding: bool,
        output_tokens: int,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended without a complete answer. If it had no first token after `waited_s`, its TTFT would have
        been longer. This is learned in order of dispatch. After its first token, the length and TPOT so far are learned,
        because otherwise only answers that nobody gave up would count."""
        request, candidate, prediction = attempt.request, attempt.candidate, attempt.prediction
        pending = self.stats.attempts.pop(attempt, None)
        key = candidate.instance, candidate.model
        stats = pending.stats if pending is not None else self.stats.candidates.get(key)
        if stats is None:
            return
        stats.instance = attempt.instance
        if stats.history is not None and not decoding and request.engine_streams:
            stats.history.stops_waiting(now - waited_s)
        own = prediction if isinstance(prediction, OnlinePrediction) else None
        tpot_s = _checked_tpot(stats, request, own, output_tokens, tpot_s)
        event = LossEvent(attempt, stats, own, pending, waited_s, decoding, output_tokens, tpot_s)
        self._learn(event, self._on_loss, now)
        if pending is not None:
            pending.lost = True
            pending.overdue_at = min(now, pending.overdue_at)
            self._learn_due(stats, now)

    def observe_report(self, instance: Instance, now: float) -> None:
        """The engine sent a load report. Every replica reads its own, so this is not exchanged."""
        name, stats = instance.name, self.stats
        if stats.models.latency is not None:
            stats.history(name).reported(instance, now)
        for model in instance.candidates:
            of = stats.candidates.get((name, model))
            if of is not None and of.pending:
                self._learn_due(of, now)

    def observe_quality(
        self, model: str, features: PromptFeatures, quality: float, *, recorded: bool = False
    ) -> None:
        """An answer of `model` to such a prompt was judged with `quality`, 0 to 1. `recorded`: it is from the records,
        which every replica can read."""
        observation = AnswerJudged(model, *features, quality)
        self.apply(observation, 0.0)
        if self.publish is not None and not recorded:
            self.publish(observation)


def _checked_tpot(
    stats: CandidateStats | None,
    request: Request,
    prediction: OnlinePrediction | None,
    output_tokens: int,
    tpot_s: float | None,
) -> float | None:
    """The TPOT if it shows the engine's speed; then the accuracy of its prediction is counted. Choices decode together,
    so each of their tokens seems to take less time; and an answer that came in one piece shows nothing."""
    if prediction is None or tpot_s is None:
        return tpot_s
    in_one_piece = tpot_s * (output_tokens - 1) < _LEAST_STEPS * prediction.estimate.step_s
    if request.choices > 1 or in_one_piece:
        return None
    if stats is not None and prediction.tpot_s is not None:
        stats.coverage.observe_tpot(log(tpot_s / prediction.tpot_s))
    return tpot_s
