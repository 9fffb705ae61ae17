"""What goes into the scheduler and what comes out of it.

Events tell what happened; instructions tell the runner what to do. Both are plain values (named tuples, the
cheapest to make), so a log of events replayed through a scheduler gives the same instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from router.core.errors import Refusal
from router.core.state import Work
from router.core.types import Candidate, EndedHow, LoadReport, Prediction, Request


# --- events -----------------------------------------------------------------------------------------
class Arrived(NamedTuple):
    """A well-formed request came in."""

    request: Request


class FirstToken(NamedTuple):
    """The engine gave its first token for an attempt."""

    request_id: str
    attempt: int


class Ended(NamedTuple):
    """An attempt ended.

    `output_tokens` are what the engine produced and bills, `prompt_tokens` its own count if it gave one.
    `restartable` says that the client has seen nothing of it, so another attempt may follow. `refusal`
    is set when the engine's answer is final for the client (an upstream 400). `fault` says that the
    instance itself may be to blame (no connection, a 5xx, a broken stream), which counts towards ejection;
    `unreachable` that there was no connection, so that the request is not to blame.
    """

    request_id: str
    attempt: int
    how: EndedHow
    output_tokens: int = 0
    prompt_tokens: int | None = None
    restartable: bool = False
    refusal: Refusal | None = None
    fault: bool = False
    unreachable: bool = False


class Left(NamedTuple):
    """The client went away."""

    request_id: str


class LoadReported(NamedTuple):
    """An engine's metrics were read."""

    instance: str
    report: LoadReport


class Probed(NamedTuple):
    """A health probe came back."""

    instance: str
    healthy: bool


class Tick(NamedTuple):
    """The runner's one timer fired (`Scheduler.wake_at`)."""


class PeerLoadReported(NamedTuple):
    """Other replicas of the router have told: of `replicas` that share the fleet, what those others have at each
    instance (none where not named), and which instances one of them has `ejected` since the last time."""

    replicas: int
    work: Mapping[str, Work]
    ejected: frozenset[str] = frozenset()


Event = Arrived | FirstToken | Ended | Left | LoadReported | Probed | PeerLoadReported | Tick


# --- instructions -----------------------------------------------------------------------------------
class Considered(NamedTuple):
    """One candidate of a decision: its prediction and score (lower is better, None if not scored) and why
    it was passed over (None for the chosen one)."""

    candidate: Candidate
    prediction: Prediction | None
    score: float | None
    reason: str | None


class Decision(NamedTuple):
    """Why an attempt goes where it goes. `propensity` is the probability with which the policy took it.
    `loads` are the engine-state features the decision saw, one row a considered candidate, as named by
    `router.core.state.LOAD_FEATURES`."""

    policy: str
    at_s: float
    chosen: int
    considered: tuple[Considered, ...]
    propensity: float | None
    loads: tuple[tuple[float | None, ...], ...]


class Dispatch(NamedTuple):
    """Send the request to a candidate. `max_output_tokens` is the bound to set (None: the engine's own);
    `budget_bound` says that the money cap, not the client, set it. `paid_tokens` are the output tokens (of all
    choices together) that the money cap pays for, whatever bound was set (None: no cap): the answer is cut there
    if the engine goes on. `hedge`: a second attempt beside the one under way; the first token decides, and the
    other one is ended by `Cancel`."""

    request_id: str
    attempt: int
    candidate: Candidate
    max_output_tokens: int | None
    budget_bound: bool
    prediction: Prediction
    decision: Decision
    paid_tokens: int | None = None
    hedge: bool = False


class Cancel(NamedTuple):
    """Give up one attempt; the request goes on with its other one, which has given its first token."""

    request_id: str
    attempt: int


class Refuse(NamedTuple):
    """End the request with an error; whatever attempt is under way is cancelled."""

    request_id: str
    refusal: Refusal


Instruction = Dispatch | Cancel | Refuse
