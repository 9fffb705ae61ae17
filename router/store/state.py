"""State that all router replicas share: limits, budgets, load, observations of predictors, and operators' changes.

`State` is the gateway's interface. `MemoryState` is for one process alone; `router.store.redis_state` shares through Redis.
`now` is always an argument, in seconds since the epoch. If the clock is set back, a bucket keeps its level.

Money: before a request is sent, its possible cost is reserved in every budget that it counts against. When it has ended,
the actual cost replaces the reservation. So spending plus reservations never exceed a budget, however many requests arrive
at once. Each replica keeps the total of its own spending, which only grows; the spending from a budget is the sum over all
replicas that ever ran. Sending a total twice changes nothing. So after an outage or a loss of the shared state, every
replica sends its totals again (a grow-only counter: Shapiro et al., "A comprehensive study of convergent and commutative
replicated data types", 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Protocol

from router.core.state import Work

#: Tolerance for rounding errors when an amount is compared with a level.
SLACK = 1e-9
#: The same for money: a millionth of a cent.
SLACK_USD = 1e-8
#: The period of a budget that never ends.
TOTAL = "total"
#: Budgets of this many past days are kept, because an answer may end long after its day.
_DAYS_KEPT = 3


# --- limits and money ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket that holds at most `capacity`, refills at `refill_per_s`, and starts full."""

    name: str
    capacity: float
    refill_per_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The money that a key may spend in one period. `period` is a day (`2026-11-22`, UTC) or `total`."""

    key: str
    period: str
    limit_usd: float


@dataclass(frozen=True, slots=True)
class Level:
    """The level of a bucket now, the time until it is full, and the time until it holds the wanted amount (`wait_s`, zero
    if it did)."""

    level: float
    full_after_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Want:
    """What one request needs: an amount from each bucket, and `reserve_usd` from each budget, or as much as is left there,
    but at least `least_usd`."""

    takes: Sequence[tuple[Bucket, float]] = ()
    budgets: Sequence[Budget] = ()
    reserve_usd: float = 0.0
    least_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a `Want`: everything or nothing. `levels` are those of its buckets. `short` is the budget with less than
    `least_usd` left. Without one, and if no level has a `wait_s`, `reserved_usd` is reserved in each budget. `left_usd` is
    the smallest rest of any budget, before this reservation (None without budgets)."""

    levels: Sequence[Level] = ()
    short: Budget | None = None
    reserved_usd: float = 0.0
    left_usd: float | None = None

    @property
    def given(self) -> bool:
        """True if everything was granted."""
        return self.short is None and not any(level.wait_s for level in self.levels)


# --- what replicas share about each other -------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class View:
    """What one replica reports: its work by instance, its number of ejections of each instance, and the round-robin
    positions that it advanced since the last report, by group: the (instance, model) taken last. `queued` counts the
    requests that wait here for a slot, by model."""

    work: Mapping[str, Work] = field(default_factory=dict)
    ejections: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """What is known of the other replicas. `replicas` counts all live replicas, including this one. `work` is the others'
    sum by instance, `queued` their sum by model. `ejected` are the instances that another replica has ejected since the
    last report, and `turns` the round-robin positions that others advanced since then."""

    replicas: int = 1
    work: Mapping[str, Work] = field(default_factory=dict)
    ejected: frozenset[str] = frozenset()
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateHealth:
    """For metrics. `connected`: the shared state answers (always true in memory). `exchanges`, `failures` and
    `exchange_s` (the sum of their times) count since the start. `alone_s` is the total time of this replica in local
    fallback."""

    shared: bool = False
    connected: bool = True
    replicas: int = 1
    exchanges: int = 0
    failures: int = 0
    exchange_s: float = 0.0
    alone_s: float = 0.0


class Listener(Protocol):
    """The callbacks of a state, called in the event loop from `State.start` on."""

    def view(self) -> View:
        """The report of this replica now."""
        ...

    def hear(self, peers: Peers) -> None:
        """Receive the other replicas' reports."""
        ...

    def hear_lessons(self, lessons: Sequence[bytes]) -> None:
        """Receive the observations of other replicas' predictors, in the order in which the shared state got them."""
        ...

    def changed(self, document: str, content: Mapping[str, Any]) -> None:
        """A shared document has changed, here or in another replica. Also called with the documents at the start."""
        ...


class State(Protocol):
    """Shared state. Methods that wait for an answer of another machine are asynchronous."""

    async def start(self, listener: Listener) -> None:
        """Start to share."""
        ...

    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        """Load the store's spending: USD by (key, period) and run. A run's amounts only grow, so a smaller amount than
        the known one changes nothing."""
        ...

    async def take(self, want: Want, now: float) -> Grant:
        """Take the whole want, or nothing. If the caller is cancelled while it waits, nothing is taken: a later answer is
        undone."""
        ...

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        """Return an amount that was taken but not used. A negative amount takes more, below zero if needed. There is no
        answer, so a remote state may get it later."""
        ...

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        """Replace a reservation in each budget by the actual cost, or record a cost without a reservation."""
        ...

    def spent_usd(self, key: str, period: str) -> float:
        """The known spending from a budget."""
        ...

    def tell(self, lesson: bytes) -> None:
        """Send an observation to the other replicas' predictors. Best effort: an unreachable replica does not get it."""
        ...

    async def change(
        self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Change a shared document (JSON; empty at first) atomically among replicas: if another replica was faster, `edit`
        is called again. Every listener gets `changed`. Raises StateError if the shared state does not answer."""
        ...

    def poke(self) -> None:
        """Work or a round-robin position has changed; send it to the other replicas soon."""
        ...

    @property
    def health(self) -> StateHealth: ...

    async def aclose(self) -> None:
        """Sign off from the other replicas, and close the connections."""
        ...


class StateError(Exception):
    """The shared state does not answer. The message has no credentials."""


class StateRefused(StateError):
    """The shared state answers but refuses this gateway, so a retry cannot succeed."""


def taken(level: float, bucket: Bucket, amount: float, granted: bool) -> Level:
    """A bucket's `Level` after `amount` was requested from its `level`."""
    wait_s = 0.0 if granted else max(0.0, amount - level - SLACK) / bucket.refill_per_s
    left = level - amount if granted else level
    return Level(left, (bucket.capacity - left) / bucket.refill_per_s, wait_s)


def left_of(want: Want, left_usd: Callable[[Budget], float]) -> tuple[float | None, Budget | None]:
    """The smallest rest of a want's budgets (None without budgets), and the budget with too little, if any. `left_usd`
    returns the rest of one budget."""
    least_usd, short = None, None
    for budget in want.budgets:
        left = left_usd(budget)
        if least_usd is None or left < least_usd:
            least_usd = left
            if left + SLACK_USD < want.least_usd or left <= 0:
                short = budget
    return least_usd, short


def oldest_kept(day: str) -> str:
    """The oldest day whose budgets are kept on a `day`, both as `2026-11-22`."""
    return (date.fromisoformat(day) - timedelta(days=_DAYS_KEPT)).isoformat()


class MemoryState:
    """The state of one process, whose run is `run_id`. The number of buckets and budgets is bounded by that of keys;
    budgets of past days are forgotten."""

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id
        self._earlier_usd: dict[tuple[str, str], dict[str, float]] = {}  # spending of other runs
        self._levels: dict[str, tuple[float, float]] = {}  # level, time
        self._spent_usd: dict[tuple[str, str], float] = {}
        self._reserved_usd: dict[tuple[str, str], float] = {}
        self._oldest = ""
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._listener: Listener | None = None

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        for document, content in self._documents.items():
            listener.changed(document, content)

    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        for name, by_run in spent.items():
            earlier = self._earlier_usd.setdefault(name, {})
            for run, usd in by_run.items():
                if run != self._run_id:
                    earlier[run] = max(earlier.get(run, 0.0), usd)

    def _level(self, bucket: Bucket, now: float) -> float:
        known = self._levels.get(bucket.name)
        if known is None:
            return bucket.capacity
        level, at = known
        if now < at:  # the clock was set back: continue from here
            self._levels[bucket.name] = level, now
            return level
        return min(bucket.capacity, level + (now - at) * bucket.refill_per_s)

    async def take(self, want: Want, now: float) -> Grant:
        levels = [self._level(bucket, now) for bucket, _ in want.takes]
        granted = all(level + SLACK >= amount for level, (_, amount) in zip(levels, want.takes, strict=True))
        left_usd, short = left_of(want, lambda budget: budget.limit_usd - self._held_usd(budget))
        granted = granted and short is None
        reserved_usd = 0.0
        if granted and left_usd is not None:
            reserved_usd = max(0.0, min(want.reserve_usd, left_usd))
            for budget in want.budgets:
                name = self._name(budget)
                self._reserved_usd[name] = self._reserved_usd.get(name, 0.0) + reserved_usd
        after = []
        for level, (bucket, amount) in zip(levels, want.takes, strict=True):
            after.append(taken(level, bucket, amount, granted))
            if granted:
                self._levels[bucket.name] = (level - amount, now)
        return Grant(after, short, reserved_usd, left_usd)

    def _held_usd(self, budget: Budget) -> float:
        name = budget.key, budget.period
        return self.spent_usd(*name) + self._reserved_usd.get(name, 0.0)

    def _name(self, budget: Budget) -> tuple[str, str]:
        """The budget's name. The first budget of a new day removes the budgets of old days."""
        if budget.period != TOTAL and (oldest := oldest_kept(budget.period)) > self._oldest:
            self._oldest = oldest
            sums: dict[tuple[str, str], Any]
            for sums in (self._spent_usd, self._reserved_usd, self._earlier_usd):
                for name in [each for each in sums if each[1] != TOTAL and each[1] < oldest]:
                    del sums[name]
        return budget.key, budget.period

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        self._levels[bucket.name] = (self._level(bucket, now) + amount, now)

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        for budget in budgets:
            name = self._name(budget)
            if reserved_usd:
                left = self._reserved_usd.get(name, 0.0) - reserved_usd
                if left > SLACK_USD:
                    self._reserved_usd[name] = left
                else:
                    self._reserved_usd.pop(name, None)
            if spent_usd:
                self._spent_usd[name] = self._spent_usd.get(name, 0.0) + spent_usd

    def spent_usd(self, key: str, period: str) -> float:
        earlier = self._earlier_usd.get((key, period))
        return self._spent_usd.get((key, period), 0.0) + (sum(earlier.values()) if earlier else 0.0)

    def tell(self, lesson: bytes) -> None:
        pass

    async def change(
        self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        content = self._documents[document] = edit(self._documents.get(document, {}))
        if self._listener is not None:
            self._listener.changed(document, content)
        return content

    def poke(self) -> None:
        pass

    @property
    def health(self) -> StateHealth:
        return StateHealth()

    async def aclose(self) -> None:
        self._levels.clear()
