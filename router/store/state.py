"""State that all replicas of the router share: limits, budgets, load, observations, and operators' changes.

The gateway uses the interface `State`. `router.store.memory_state` is for a single process; `router.store.redis_state`
shares through Redis. `now` is always an argument, in seconds since the epoch. If the clock is set back, a bucket keeps its level.

Money. Before a request is sent, what it may cost is reserved in each of its budgets. When it has ended, what it did cost
replaces the reservation. So spending and reservations together never exceed a budget, however many requests run at once.
Each replica keeps its own total, which only grows; the spending of a budget is the sum over all replicas that ever ran.
Sending a total twice changes nothing. So after the shared state was away or has lost its data, every replica sends its
totals again (a grow-only counter: Shapiro et al., "A comprehensive study of convergent and commutative replicated data
types", 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from router.core.state import Work

#: Tolerance for rounding of floating-point sums.
SLACK = 1e-9
#: The same for money: a millionth of a cent.
SLACK_USD = 1e-8
#: The period of a budget that never ends.
TOTAL = "total"


# --- limits and money ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: holds at most `capacity`, refills at `refill_per_s`. Full when first seen."""

    name: str
    capacity: float
    refill_per_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Money that a key may spend in one period. `period` is a day (`2026-11-22`, UTC) or `total`. `whole`: it is reserved in
    whole units only, as slots are."""

    key: str
    period: str
    limit_usd: float
    whole: bool = False


class Level(NamedTuple):
    """A bucket's level, the time until it is full, and the time until it holds the wanted amount (`wait_s`, zero if it
    did)."""

    level: float
    full_after_s: float
    wait_s: float


class Claim(NamedTuple):
    """What one request needs: an amount of each bucket, and `reserve_usd` of each budget, or what is left of it, but at
    least `least_usd`. `before` is what the same request took of the same buckets earlier (empty: nothing)."""

    takes: Sequence[tuple[Bucket, float]] = ()
    budgets: Sequence[Budget] = ()
    reserve_usd: float = 0.0
    least_usd: float = 0.0
    before: Sequence[tuple[Bucket, float]] = ()


class Grant(NamedTuple):
    """The answer to a `Claim`: all of it or nothing.

    `levels` are those of its buckets. `short` is a budget with less than `least_usd` left. Without one, and without a
    `wait_s`, `reserved_usd` is reserved in each budget. `left_usd` is the least that was left of any budget before this
    reservation (None without budgets).
    """

    levels: Sequence[Level] = ()
    short: Budget | None = None
    reserved_usd: float = 0.0
    left_usd: float | None = None

    @property
    def given(self) -> bool:
        """Whether the claim was granted."""
        return self.short is None and not any(level.wait_s for level in self.levels)


# --- what replicas exchange ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The report of one replica.

    `work` and `ejections` (so far) are by instance. `turns` are the round-robin positions that changed since the last
    report: by group, the (instance, model) that had its turn last. `queued` counts waiting requests by model. `counts` are
    totals since its start by model (`router.scaling.load.Totals`).
    """

    work: Mapping[str, Work] = field(default_factory=dict)
    ejections: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """What is known of the other replicas.

    `replicas` counts all live ones, including this one. `work` is the sum over the others by instance, `queued` by model.
    `ejected` are instances that another replica has ejected since the last time, `turns` positions that others have
    changed since then. `counts` are by run of a replica, then by model.
    """

    replicas: int = 1
    work: Mapping[str, Work] = field(default_factory=dict)
    ejected: frozenset[str] = frozenset()
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateHealth:
    """For metrics. `connected`: the shared state answers (always true in memory). `exchanges`, `failures` and `exchange_s`
    (the sum of their times) count since the start. `alone_s` is the total time in which this replica decided alone."""

    shared: bool = False
    connected: bool = True
    replicas: int = 1
    exchanges: int = 0
    failures: int = 0
    exchange_s: float = 0.0
    alone_s: float = 0.0


class Listener(Protocol):
    """What a state calls in the event loop, from `State.start` on."""

    def report(self) -> ReplicaReport:
        """This replica's report."""

    def receive_peers(self, peers: Peers) -> None:
        """The other replicas' reports."""

    def receive_observations(self, observations: Sequence[bytes]) -> None:
        """Observations of other replicas, in the order in which they reached the shared state."""

    def document_changed(self, document: str, content: Mapping[str, Any]) -> None:
        """A shared document has changed, here or elsewhere. Also called with each document at the start."""


class State(Protocol):
    """Shared state. Methods that wait for another machine are asynchronous."""

    async def start(self, listener: Listener) -> None:
        """Begin to exchange."""

    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        """Start with the store's amounts of other runs: USD by (key, period) and run. An amount of a run only grows, so a
        smaller one changes nothing."""

    async def take(self, claim: Claim, now: float) -> Grant:
        """Take everything, or nothing. If the caller is cancelled while it waits, nothing is taken: a grant that
        arrives later is returned."""

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        """Return an amount to a bucket; a negative amount takes more, below zero if necessary. There is no answer, so a
        shared state may send it later."""

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        """Replace a reservation in each budget by what was spent. A cost without a reservation is added the same way."""

    def spent_usd(self, key: str, period: str) -> float:
        """What is spent of a budget, as far as this replica knows."""

    def send_observations(self, message: bytes) -> None:
        """Send encoded observations to the others. Best effort: nothing is kept for a replica that is away."""

    async def change(self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Change a shared document (JSON; empty at first), atomically among replicas: `edit` is called again if another
        replica was faster. Calls every listener's `document_changed`. Raises StateError if the shared state does not
        answer."""

    def wake(self) -> None:
        """Exchange soon: something changed that others should know (work, turns)."""

    @property
    def health(self) -> StateHealth: ...

    async def aclose(self) -> None:
        """Leave the other replicas and close connections."""


class StateError(Exception):
    """The shared state does not answer. The message holds no credentials."""


class StateRefused(StateError):
    """The shared state refuses this gateway's credentials: waiting does not help."""


class ChangedElsewhere(Exception):
    """Another replica has changed a document; `content` is what it says now."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__("changed elsewhere")
        self.content = content


async def replace_document(
    state: State, document: str, unchanged: Callable[[Mapping[str, Any]], bool], content: Mapping[str, Any]
) -> None:
    """Replace a shared document if its present content is `unchanged`. Raises ChangedElsewhere otherwise, StateError."""

    def edit(found: Mapping[str, Any]) -> Mapping[str, Any]:
        if not unchanged(found):
            raise ChangedElsewhere(found)
        return content

    await state.change(document, edit)


def taken(level: float, bucket: Bucket, amount: float, granted: bool) -> Level:
    """A bucket's `Level` after an amount was wanted from its `level`."""
    wait_s = 0.0 if granted else max(0.0, amount - level - SLACK) / bucket.refill_per_s
    left = level - amount if granted else level
    return Level(left, (bucket.capacity - left) / bucket.refill_per_s, wait_s)


def decide(
    claim: Claim, takes: Sequence[tuple[Bucket, float, float]], left_usd: Callable[[Budget], float]
) -> Grant:
    """The answer to a claim. `takes` are its buckets, each with its level and the amount that must be there; `left_usd`
    returns what is left of a budget."""
    least_usd, short = None, None
    for budget in claim.budgets:
        left = left_usd(budget)
        if least_usd is None or left < least_usd:
            least_usd = left
            if left + SLACK_USD < claim.least_usd or left <= 0:
                short = budget
    granted = short is None and all(level + SLACK >= need for _, level, need in takes)
    levels = [
        taken(level, bucket, amount if granted else need, granted)
        for (bucket, level, need), (_, amount) in zip(takes, claim.takes, strict=True)
    ]
    reserved_usd = 0.0 if least_usd is None or not granted else max(0.0, min(claim.reserve_usd, least_usd))
    return Grant(levels, short, reserved_usd, least_usd)
