"""The scheduler's state of a request and of its attempts, from arrival to settlement.

A request is in one of these phases::

    QUEUED --> RUNNING --> ENDING --> (gone)
       ^        | |  ^
       |        | +--+-- CHECKING: its answer is complete, and another candidate may be asked for a better one
       +--------+  its attempts failed, and every other candidate is full

- QUEUED: it waits for a slot; `deferred`: its policy lets it wait although there is one.
- RUNNING: it has attempts under way: one, or two if a hedge runs beside a late first one.
- CHECKING: its answer is complete (`held`), and is checked before the client gets it.
- ENDING: its end is decided (`end`), but the driver has not yet reported the end of cancelled attempts.

An attempt is in one of these phases::

    FUNDING --> PREFILL --> DECODING --> ENDED
        |          |            |          ^
        |          +------------+--> CANCELLING
        +-----------------------------------> ENDED (the budgets do not pay it)

- FUNDING: it has its slot, and waits for money before it may start.
- PREFILL: it was dispatched, and has no first token yet.
- DECODING: it has its first token, so it is the one that answers.
- CANCELLING: the driver has the instruction to abort it, and has not reported its end yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from router.compiled import compiled_init
from router.core.deciding import Decided
from router.core.errors import Refusal
from router.core.interfaces import SentAttempt
from router.core.money.account import OutputBound, RequestMoney
from router.core.state import Instance
from router.core.types import Candidate, Decision, EndedHow, Outcome, Prediction, Request

#: The prediction of an attempt that has none (yet).
NO_PREDICTION = Prediction()


class RequestPhase(Enum):
    """See the module's docstring."""

    QUEUED = 1
    RUNNING = 2
    CHECKING = 3
    ENDING = 4


class AttemptPhase(Enum):
    """See the module's docstring."""

    FUNDING = 1
    PREFILL = 2
    DECODING = 3
    CANCELLING = 4
    ENDED = 5


@compiled_init
@dataclass(slots=True, eq=False)
class AttemptState(SentAttempt):
    """One attempt. Times are on the driver's clock in seconds.

    `number` counts the request's attempts from 1. `prediction` is that of its dispatch. `expected_output_tokens` and
    `promised_tpot_s` (its TPOT target, if it can be met) are its part of the instance's work. `attempts.count` sets these
    three. `assumed_decoding`: it is not streamed, and counts as decoding since its first token was expected. The fields after
    `first_token_at` are set at its end:
    `output_tokens` and `prompt_tokens` are the engine's counts (None: it sent none), `billed` says whether the engine
    is paid for it.
    """

    number: int
    decided: Decided
    bound: OutputBound
    hedge: bool
    dispatched_at: float
    expected_output_tokens: int = 0
    promised_tpot_s: float | None = None
    phase: AttemptPhase = AttemptPhase.PREFILL
    assumed_decoding: bool = False
    first_token_at: float | None = None
    ended_at: float | None = None
    ended_how: EndedHow | None = None
    output_tokens: int = 0
    prompt_tokens: int | None = None
    cost_usd: float = 0.0
    billed: bool = False
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def decision(self) -> Decision:
        """The decision for this candidate."""
        return self.decided.decision

    @property
    def propensity(self) -> float:
        """The probability with which the policy chose this candidate."""
        return self.decided.choice.propensity

    @property
    def decoding(self) -> bool:
        """Whether it had its first token; stays true after its end."""
        return self.first_token_at is not None


@compiled_init
class RequestEnd(NamedTuple):
    """How a request ends. `refusal` is the client's error (None: an answer, or the client has left). `answer` is the
    attempt that the record describes."""

    outcome: Outcome
    at: float
    refusal: Refusal | None = None
    answer: AttemptState | None = None
    slo_met: bool | None = None
    error_code: str | None = None


@compiled_init
@dataclass(slots=True, eq=False)
class RequestState:
    """One request. `seq` is its place in the order of arrival.

    `attempts` are all its attempts, `under_way` those that have not ended. `tried` are the (instance, model) pairs that
    it was sent to, `placed` is the last of them (None: none yet). `charged_tokens` is the work that was counted for its
    key in the queue. `failed_at` are the instances at which it failed, until it is known whether they or the request
    caused it. `held` is the attempt whose complete answer was held back for a check: the client gets it unless a better one
    comes.
    `refused`: an engine has refused the request itself.
    """

    request: Request
    seq: int
    money: RequestMoney
    phase: RequestPhase = RequestPhase.RUNNING
    deferred: bool = False
    attempts: list[AttemptState] = field(default_factory=list)
    under_way: list[AttemptState] = field(default_factory=list)
    tried: set[tuple[str, str]] = field(default_factory=set)
    placed: Candidate | None = None
    charged_tokens: float | None = None
    failed_at: dict[str, Instance] = field(default_factory=dict)
    held: AttemptState | None = None
    refused: bool = False
    end: RequestEnd | None = None

    @property
    def decoding(self) -> bool:
        """Whether an attempt under way has its first token."""
        return any(each.first_token_at is not None for each in self.under_way)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that may serve it, in order of preference."""
        return self.request.models + self.request.fallbacks

    def slack_deadline(self, decode_s: float) -> float:
        """The time at which the first token is due if decoding takes at least `decode_s`. A key's requests wait in this
        order."""
        request, slo = self.request, self.request.slo
        if slo is None:
            return request.expires_at
        targets = [] if slo.ttft_s is None else [slo.ttft_s]
        if slo.e2e_s is not None:
            targets.append(slo.e2e_s - decode_s)
        return request.arrived_at + min(targets) if targets else request.expires_at

    def hard_deadline(self) -> float | None:
        """When a hard SLO ends this request: its TTFT until the first token, its E2E always."""
        request = self.request
        if not request.hard or request.slo is None:
            return None
        first = None if self.decoding or self.held is not None else request.slo.ttft_s
        targets = [request.slo.e2e_s, first]
        due = min((t for t in targets if t is not None), default=None)
        return None if due is None else request.arrived_at + due
