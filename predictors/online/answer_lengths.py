"""The learner of answers' lengths, and of how engines count the tokens of prompts, by model (`model_lengths`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from predictors.online.learner import EndEvent, Learner, LossEvent
from predictors.online.observation import CandidateKey, Count, LengthShares
from router.compiled import compiled_init


@compiled_init
@dataclass(slots=True)
class AnswerCounted:
    """The engine's own counts of a prompt, which the router had estimated, and of its answer; None where unknown.
    `output_tokens` are those of all `choices`, `max_tokens` caps each. `predicted` are the length model's shares."""

    candidate: CandidateKey
    estimated_prompt_tokens: Count
    prompt_tokens: Count | None
    output_tokens: Count | None
    max_tokens: Count | None
    choices: Annotated[int, Field(ge=1, le=10**6)]
    predicted: LengthShares | None

    def for_other_models(self) -> AnswerCounted:
        return self if self.predicted is None else replace(self, predicted=None)


class AnswerLengths(Learner[AnswerCounted]):
    """Learns from each complete answer, even of an instance that has left the fleet meanwhile. Of an answer that ended
    in the middle it learns that it would have been longer."""

    observations = (AnswerCounted,)

    def observe_end(self, event: EndEvent) -> AnswerCounted | None:
        request, candidate = event.attempt.request, event.attempt.candidate
        if not event.has_output and event.prompt_tokens is None:
            return None
        predicted = None if request.forecast is None else request.forecast.predicted.get(candidate.model)
        return AnswerCounted(
            (candidate.instance, candidate.model),
            request.prompt_tokens,
            event.prompt_tokens,
            event.output_tokens if event.has_output else None,
            event.max_tokens,
            request.choices or 1,
            predicted,
        )

    def observe_loss(self, event: LossEvent) -> AnswerCounted | None:
        request, candidate, tokens = event.attempt.request, event.attempt.candidate, event.output_tokens
        if not event.decoding or tokens < 1 or request.choices > 1:
            return None
        predicted = None if request.forecast is None else request.forecast.predicted.get(candidate.model)
        return AnswerCounted(
            (candidate.instance, candidate.model), request.prompt_tokens, None, tokens, tokens, 1, predicted
        )

    def apply(self, observation: AnswerCounted, now: float) -> None:
        lengths = self.stats.lengths.of(observation.candidate[1])
        if observation.prompt_tokens is not None:
            lengths.observe_prompt(observation.estimated_prompt_tokens, observation.prompt_tokens)
        if observation.output_tokens is not None:
            lengths.observe_output(
                observation.output_tokens, observation.max_tokens, observation.choices, observation.predicted
            )
