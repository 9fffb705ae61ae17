"""The scheduler's inputs (events) and outputs (instructions).

An event says what happened; an instruction says what the driver (gateway or simulator) must do. Both are plain values,
and everything that changes a decision is an event. So the same events give the same instructions when they are
replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from router.compiled import compiled_init
from router.core.money.account import OutputBound
from router.core.money.reservation import Allowance, Funding
from router.core.request_state import AttemptState
from router.core.settings import SchedulerSettings
from router.core.settlement import Settlement
from router.core.state import Instance, Work
from router.core.types import (
    Candidate,
    Decision,
    EndedHow,
    LoadReport,
    Prediction,
    PromptFeatures,
    Request,
    Targets,
)


class NamedModels(Protocol):
    """Trained predictors."""

    @property
    def name(self) -> str: ...


# --- events -----------------------------------------------------------------------------------------
@compiled_init
class Arrived(NamedTuple):
    """A well-formed request arrived. `funding` is the grant of its key's budgets (None: no budget bounds it)."""

    request: Request
    funding: Funding | None = None


@compiled_init
class FirstToken(NamedTuple):
    """The engine gave its first token for an attempt."""

    request_id: str
    attempt: int


@compiled_init
class Metered(NamedTuple):
    """The cost of an attempt has passed `Allowance.report_at_usd`. With its next event it will be `cost_usd`."""

    request_id: str
    attempt: int
    cost_usd: float


class Granted(NamedTuple):
    """The answer of the budgets to `Reserve`: another `reserved_usd` is reserved (0: nothing is left). Before that the
    budgets had `left_usd` left (None: unknown)."""

    request_id: str
    reserved_usd: float
    left_usd: float | None


class FailureKind(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"  # the engine answered with an error, closed the connection early, or sent nothing for too long
    UNREACHABLE = "unreachable"  # no connection
    REJECTED = "rejected"  # the engine refused the request itself: another engine would refuse it too
    TOO_LARGE = "too_large"  # the answer is larger than the router reads
    NO_SOCKET = "no_socket"  # this machine has no socket left


class Failure(NamedTuple):
    """How an attempt failed. `status` is the engine's HTTP status and `retry_after_s` its Retry-After, if it sent one.
    `message`, `param` and `code` of a rejection are from the engine and go to the client. They may quote the request, so they
    are never logged."""

    kind: FailureKind
    message: str = ""
    status: int | None = None
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


@compiled_init
class Ended(NamedTuple):
    """An attempt has ended.

    `how` is OK, FAILED (with `failure`) or CANCELLED. `output_tokens` are the tokens that the engine produced and
    bills, `prompt_tokens` is its own count of the prompt, if it sent one. `sent`: the engine got the request.
    `truncated`: the engine stopped at its token bound. `out_of_money`: the driver cut the answer at its allowance.
    `empty`: the answer has no text and no tool call (set only if another answer is held back). `held_up`: the driver
    did not read the engine for a while, because of the client or of money.
    """

    request_id: str
    attempt: int
    how: EndedHow
    output_tokens: int = 0
    prompt_tokens: int | None = None
    sent: bool = True
    truncated: bool = False
    out_of_money: bool = False
    failure: Failure | None = None
    empty: bool = False
    held_up: bool = False


class Checked(NamedTuple):
    """The answer of an attempt was checked. `score` says how good it is, from 0 to 1; None if the check failed or took too
    long."""

    request_id: str
    attempt: int
    score: float | None


class Left(NamedTuple):
    """The client disconnected."""

    request_id: str


class GivenUp(NamedTuple):
    """The driver cannot continue a request. `reason` is `shutdown` or `internal_error`."""

    request_id: str
    reason: str


@compiled_init
class LoadReported(NamedTuple):
    """An engine's metrics were read."""

    instance: str
    report: LoadReport


@compiled_init
class Probed(NamedTuple):
    """The result of a health probe."""

    instance: str
    healthy: bool


class PeerLoadReported(NamedTuple):
    """A report of the other replicas of the router: their work at each instance (none if an instance is missing), and the
    instances that one of them has `ejected` since the last report."""

    work: Mapping[str, Work]
    ejected: frozenset[str] = frozenset()


class FleetChanged(NamedTuple):
    """The fleet consists of `instances` from now on. An instance object that stays keeps its counters. Attempts at a
    removed instance continue to their end; until then `Scheduler.known_instances` has its object for its return."""

    instances: tuple[Instance, ...]
    settings: SchedulerSettings


class DrainChanged(NamedTuple):
    """An instance gets no new requests while it is `draining`."""

    instance: str
    draining: bool


class TargetsChanged(NamedTuple):
    """The targets of each scope from now on: by key, and None for the fleet."""

    targets: Mapping[str | None, Targets]


class QualityReported(NamedTuple):
    """An answer of `model` to a prompt with these features was rated `quality`, 0 to 1. `recorded`: it is
    from the records, which every replica can read."""

    model: str
    features: PromptFeatures
    quality: float
    recorded: bool = False


class PeerObserved(NamedTuple):
    """Another replica of the router sent observations for the predictors, in the predictors' own encoding."""

    message: bytes


class PeerTurned(NamedTuple):
    """Another replica of the router sent round-robin positions: for each group, the (instance, model) that had its turn
    last."""

    policy: str
    turns: Mapping[str, tuple[str, str]]


class PredictorsChanged(NamedTuple):
    """These trained predictors serve from now on. Their `name` identifies them."""

    models: NamedModels


class Tick(NamedTuple):
    """The driver's one timer fired (`Scheduler.wake_at`)."""


RequestEvent = FirstToken | Metered | Granted | Ended | Checked | Left | GivenUp
Event = (
    Arrived
    | RequestEvent
    | LoadReported
    | Probed
    | PeerLoadReported
    | FleetChanged
    | DrainChanged
    | TargetsChanged
    | QualityReported
    | PeerObserved
    | PeerTurned
    | PredictorsChanged
    | Tick
)


# --- instructions -----------------------------------------------------------------------------------
@compiled_init
class Dispatch(NamedTuple):
    """Send the request to a candidate. `bound` limits the length of its answer, `allowance` what it may cost for now
    (None: no budget bounds it). `hedge`: it is a second attempt beside a running one; when one of them gives its first
    token, `Cancel` ends the other one. `streams`: the engine is to stream its answer; if not, no `FirstToken` comes.
    `state` is the scheduler's state of the attempt, to be read only."""

    request_id: str
    attempt: int
    candidate: Candidate
    bound: OutputBound
    state: AttemptState
    allowance: Allowance | None = None
    hedge: bool = False
    streams: bool = True

    @property
    def prediction(self) -> Prediction:
        """The prediction for this dispatch, known after `Scheduler.catch_up`."""
        return self.state.prediction

    @property
    def decision(self) -> Decision:
        """The decision for this candidate, complete after `Scheduler.catch_up`."""
        return self.state.decision


class Cancel(NamedTuple):
    """Abort one attempt."""

    request_id: str
    attempt: int


class Reserve(NamedTuple):
    """Take `usd` more from the budgets of the request's key."""

    request_id: str
    usd: float


class Allow(NamedTuple):
    """An attempt may cost up to this allowance from now on."""

    request_id: str
    attempt: int
    allowance: Allowance


class Check(NamedTuple):
    """Have the complete answer of an attempt at this candidate checked. The client gets nothing of it yet."""

    request_id: str
    attempt: int
    candidate: Candidate


@compiled_init
class Finish(NamedTuple):
    """The request and all its attempts have ended: answer or refuse the client as the settlement says."""

    request_id: str
    settlement: Settlement


Instruction = Dispatch | Cancel | Reserve | Allow | Check | Finish
