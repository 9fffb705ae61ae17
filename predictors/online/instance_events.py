"""The learner of an instance's events: its history, for the latency model, and its rate of prefills."""

from __future__ import annotations

from dataclasses import dataclass

from predictors.online.candidate_stats import PendingTtft
from predictors.online.learner import EndEvent, Learner, LossEvent
from predictors.online.observation import CandidateKey, Count, Log, Seconds, Tokens
from router.compiled import compiled_init


@compiled_init
@dataclass(slots=True)
class AttemptSent:
    """An attempt was sent with this estimate (`predictors.kernels.reference.estimates.Estimate`)."""

    candidate: CandidateKey
    ttft_s: Seconds
    ttft_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens
    step_s: Seconds


@compiled_init
@dataclass(slots=True)
class FirstTokenCame:
    """The first token of an attempt with this estimate arrived, `waited_s` after its dispatch."""

    candidate: CandidateKey
    waited_s: Seconds
    ttft_s: Seconds
    ttft_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens


@compiled_init
@dataclass(slots=True)
class AnswerEnded:
    """An attempt with this estimate gave a complete answer, at `actual_tpot_s` seconds a token (None: one token)."""

    candidate: CandidateKey
    output_tokens: Count
    actual_tpot_s: Seconds | None
    tpot_s: Seconds
    tpot_bias: Log
    prompt_tokens: Tokens
    cached_tokens: Tokens


@dataclass(slots=True)
class AttemptLost:
    """An attempt ended without a complete answer, `decoding` or before its first token."""

    candidate: CandidateKey
    waited_s: Seconds
    decoding: bool


InstanceEvent = AttemptSent | FirstTokenCame | AnswerEnded | AttemptLost


class InstanceEvents(Learner[InstanceEvent]):
    """Learns the history of instances. Without a latency model it learns only first tokens, for the rate of prefills."""

    observations = (AttemptSent, FirstTokenCame, AnswerEnded, AttemptLost)

    def observe_dispatch(self, attempt: PendingTtft) -> AttemptSent | None:
        stats, estimate = attempt.stats, attempt.prediction.estimate
        if stats.history is None:
            return None
        return AttemptSent(
            stats.key,
            estimate.ttft_s,
            estimate.ttft_bias,
            estimate.prompt_tokens,
            estimate.cached_tokens,
            estimate.step_s,
        )

    def observe_first_token(self, attempt: PendingTtft) -> FirstTokenCame:
        estimate = attempt.prediction.estimate
        return FirstTokenCame(
            attempt.stats.key,
            attempt.ttft_s,
            estimate.ttft_s,
            estimate.ttft_bias,
            estimate.prompt_tokens,
            estimate.cached_tokens,
        )

    def observe_end(self, event: EndEvent) -> AnswerEnded | AttemptLost | None:
        stats, pending = event.stats, event.pending
        if stats is None or stats.history is None:
            return None
        if pending is not None:  # the history counts an answer without a first token as lost
            return AttemptLost(stats.key, event.at_s - pending.dispatched_at, False)
        if event.prediction is None:
            return None
        estimate = event.prediction.estimate
        return AnswerEnded(
            stats.key,
            event.output_tokens,
            event.tpot_s,
            estimate.tpot_s,
            estimate.tpot_bias,
            estimate.prompt_tokens,
            estimate.cached_tokens,
        )

    def observe_loss(self, event: LossEvent) -> AttemptLost | None:
        if event.stats.history is None:
            return None
        return AttemptLost(event.stats.key, event.waited_s, event.decoding)

    def apply(self, observation: InstanceEvent, now: float) -> None:
        stats = self.stats.candidates[observation.candidate]
        history, instance = stats.history, stats.instance
        if isinstance(observation, FirstTokenCame):
            stats.prefills.add(observation.prompt_tokens - observation.cached_tokens, now)
            if history is not None:
                history.first_token(instance, observation, observation.waited_s, now)
        elif history is None:  # another replica has a latency model
            return
        elif isinstance(observation, AttemptSent):
            history.dispatched(instance, observation, observation.step_s, now)
        elif isinstance(observation, AnswerEnded):
            history.ended(instance, observation, observation.output_tokens, observation.actual_tpot_s, now)
        else:
            history.lost(instance, observation.waited_s, observation.decoding, now)
