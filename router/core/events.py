"""What goes into the scheduler and what comes out of it.

Events say what happened; instructions say what the driver (gateway or simulator) has to do. Both are plain values, so a log
of events replayed through a scheduler gives the same instructions. Whatever changes a decision is an event.

=================  ===============================================================================
event              the driver says
=================  ===============================================================================
Arrived            a request came in
FirstToken         an attempt's first token is here
Metered            an attempt's cost has reached what was allowed
Granted            the key's budgets have answered `Reserve`
Ended              an attempt has ended, for whatever reason
Left               the client went away
GivenUp            the driver itself cannot go on with a request
LoadReported       an engine's metrics were read
Probed             a health probe came back
PeerLoadReported   other replicas of the router reported their work
FleetChanged       instances or settings were replaced
DrainChanged       an instance starts or stops draining
TargetsChanged     operators changed the targets that policies hold
QualityReported    a client judged an answer
PeerObserved       another replica observed something that predictors learn from
PeerTurned         another replica passed on turns of a policy
PredictorsChanged  other trained predictors serve from now on
Tick               the driver's one timer fired
=================  ===============================================================================

=================  ===============================================================================
instruction        the driver does
=================  ===============================================================================
Dispatch           sends the request to a candidate; answers with `Ended` when that is over
Cancel             aborts an attempt; answers with `Ended` at once
Reserve            takes more money from the key's budgets; answers with `Granted`
Allow              lets an attempt cost more, or ends it
Finish             answers or refuses the client, and records the request
=================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from router.core.money.account import OutputBound
from router.core.money.reservation import Allowance, Funding
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
class Arrived(NamedTuple):
    """A well-formed request came in. `funding` is what its key's budgets granted it (None: no budget bounds it)."""

    request: Request
    funding: Funding | None = None


class FirstToken(NamedTuple):
    """The engine gave its first token for an attempt."""

    request_id: str
    attempt: int


class Metered(NamedTuple):
    """The cost of an attempt has passed `Allowance.report_at_usd`: with its next event it is `cost_usd`."""

    request_id: str
    attempt: int
    cost_usd: float


class Granted(NamedTuple):
    """The budgets' answer to `Reserve`: `reserved_usd` more is reserved (0: the budgets gave nothing) of the `left_usd` that
    they had left (None: unknown)."""

    request_id: str
    reserved_usd: float
    left_usd: float | None


class FailureKind(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"  # the engine answered with an error, broke off or fell silent
    UNREACHABLE = "unreachable"  # no connection
    REJECTED = "rejected"  # the engine refused the request itself: another one would, too
    TOO_LARGE = "too_large"  # the engine answered with more than is read
    NO_SOCKET = "no_socket"  # this machine has no socket left


class Failure(NamedTuple):
    """How an attempt failed. `status` is the engine's HTTP status, if it gave one. `message`, `param` and `code` of a
    rejection are the engine's own words for the client: they may quote the request, so they are in no log."""

    kind: FailureKind
    message: str = ""
    status: int | None = None
    param: str | None = None
    code: str | None = None


class Ended(NamedTuple):
    """An attempt has ended.

    `how` is OK, FAILED (with `failure`) or CANCELLED. `output_tokens` are what the engine produced and bills,
    `prompt_tokens` its own count if it gave one. `sent` says that the engine was given the request. `truncated` says that
    the engine stopped at its bound, `out_of_money` that the driver cut the answer where its money ended.
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


class Left(NamedTuple):
    """The client went away."""

    request_id: str


class GivenUp(NamedTuple):
    """The driver cannot go on with a request: `reason` is `shutdown` or `internal_error`."""

    request_id: str
    reason: str


class LoadReported(NamedTuple):
    """An engine's metrics were read."""

    instance: str
    report: LoadReport


class Probed(NamedTuple):
    """A health probe came back."""

    instance: str
    healthy: bool


class PeerLoadReported(NamedTuple):
    """Other replicas of the router reported: of `replicas` that share the fleet, what those others have at each instance
    (none where not named), and which instances one of them has `ejected` since the last time."""

    replicas: int
    work: Mapping[str, Work]
    ejected: frozenset[str] = frozenset()


class FleetChanged(NamedTuple):
    """The fleet is `instances` from now on. An instance object that stays keeps its counters; attempts under way on
    one that goes run to their end."""

    instances: tuple[Instance, ...]
    settings: SchedulerSettings


class DrainChanged(NamedTuple):
    """An instance takes no new request while it is `draining`."""

    instance: str
    draining: bool


class TargetsChanged(NamedTuple):
    """What policies hold for each scope from now on: a key, and None for the fleet."""

    targets: Mapping[str | None, Targets]


class QualityReported(NamedTuple):
    """An answer of `model` to a prompt with these features was judged `quality`, 0 to 1. `recorded`: it comes from the
    records, where every replica finds it."""

    model: str
    features: PromptFeatures
    quality: float
    recorded: bool = False


class PeerObserved(NamedTuple):
    """Another replica of the router observed something that predictors learn from, in their own encoding."""

    message: bytes


class PeerTurned(NamedTuple):
    """Another replica of the router passed on turns: by what is taken in turn, the (instance, model) that had the last
    one."""

    policy: str
    turns: Mapping[str, tuple[str, str]]


class PredictorsChanged(NamedTuple):
    """These trained predictors serve from now on; their `name` tells them from others."""

    models: NamedModels


class Tick(NamedTuple):
    """The driver's one timer fired (`Scheduler.wake_at`)."""


RequestEvent = FirstToken | Metered | Granted | Ended | Left | GivenUp
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
class Dispatch(NamedTuple):
    """Send the request to a candidate. `bound` says how long its answer may become, `allowance` what it may cost for now
    (None: no budget bounds it). `hedge`: it is a second attempt beside the one under way; the first token decides, and
    `Cancel` ends the other one."""

    request_id: str
    attempt: int
    candidate: Candidate
    bound: OutputBound
    prediction: Prediction
    decision: Decision
    allowance: Allowance | None = None
    hedge: bool = False


class Cancel(NamedTuple):
    """Abort one attempt."""

    request_id: str
    attempt: int


class Reserve(NamedTuple):
    """Take `usd` more from the budgets of the request's key."""

    request_id: str
    usd: float


class Allow(NamedTuple):
    """An attempt may cost so much from now on."""

    request_id: str
    attempt: int
    allowance: Allowance


class Finish(NamedTuple):
    """The request is over, and all of its attempts: answer or refuse the client by the settlement."""

    request_id: str
    settlement: Settlement


Instruction = Dispatch | Cancel | Reserve | Allow | Finish
