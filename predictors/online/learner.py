"""The interface of all learners, and the events that they see.

A learner learns one thing while the router serves, in two steps:

- `observe_*` turns an event into an observation (`predictors.online.observation`), or None. It changes nothing.
- `apply` learns from an observation. Nothing else changes what the learner knows.

So local observations and those of other replicas are learned by the same code. `predictors.online.learning` calls both
methods, and `predictors.online.learners` lists the learners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats, PendingTtft
from predictors.online.fleet_stats import FleetStats
from predictors.online.prediction import OnlinePrediction
from router.compiled import compiled_init
from router.core.interfaces import SentAttempt
from router.core.types import Candidate

O = TypeVar("O")  # noqa: E741 (the observations of one learner)


@compiled_init
@dataclass(slots=True)
class EndEvent:
    """An attempt ended with a complete answer.

    `stats` is None if the instance has left the fleet, `prediction` is None if another predictor made it, and `pending`
    is None if the first token came before. `output_tokens` are those of all choices, `max_tokens` caps each.
    `prompt_tokens` are the engine's own count, `tpot_s` its seconds for each token after the first; None if unknown.
    `has_output`: there is an answer to learn a length from.
    """

    attempt: SentAttempt
    stats: CandidateStats | None
    prediction: OnlinePrediction | None
    pending: PendingTtft | None
    output_tokens: int
    max_tokens: int | None
    prompt_tokens: int | None
    tpot_s: float | None
    has_output: bool
    at_s: float


@dataclass(slots=True)
class LossEvent:
    """An attempt ended without a complete answer, `waited_s` after its dispatch. `pending` is None if the first token
    came before. `decoding`: the engine had given a first token. The answer would have been longer than
    `output_tokens`, which took `tpot_s` each (None: unknown). `prediction` as in `EndEvent`."""

    attempt: SentAttempt
    stats: CandidateStats
    prediction: OnlinePrediction | None
    pending: PendingTtft | None
    waited_s: float
    decoding: bool
    output_tokens: int
    tpot_s: float | None


class Learner(ABC, Generic[O]):
    """Learns one thing. A learner overrides the `observe_*` methods of the events that it learns from."""

    #: The kinds of its observations. Each has the field `candidate`, or `model` if it is about a model only.
    observations: ClassVar[tuple[type, ...]]

    def __init__(self, stats: FleetStats) -> None:
        self.stats = stats

    def observe_dispatch(self, attempt: PendingTtft) -> O | None:
        """The attempt was sent to its instance."""
        return None

    def observe_first_token(self, attempt: PendingTtft) -> O | None:
        """The first token of the attempt came `attempt.ttft_s` after its dispatch."""
        return None

    def observe_end(self, event: EndEvent) -> O | None:
        """An attempt ended with a complete answer."""
        return None

    def observe_loss(self, event: LossEvent) -> O | None:
        """An attempt ended without a complete answer."""
        return None

    @abstractmethod
    def apply(self, observation: O, now: float) -> None:
        """Learn from an observation that was made here or received from another replica. Its instance and model are in
        the fleet, except that feedback may name a model that is not known yet."""

    def joins(self, candidate: Candidate) -> None:
        """The fleet has a new candidate."""

    def forget(self, instances: Collection[str]) -> None:
        """The instances have left the fleet."""

    def use(self, models: Models) -> None:
        """Use other trained models from now on. Drop what was learned about the earlier ones."""
