"""State that all replicas of the router share: limits, budgets, load, lessons, and what operators changed.

`State` is what the gateway sees. `MemoryState` serves one process alone; `router.store.redis_state` shares through
Redis. `now` is an argument everywhere (seconds since the epoch; a bucket goes on from where it was if the clock is set back).

Money. What a request may cost is reserved in every budget that it counts against before it is sent, and replaced by
what it did cost when it has ended. So the sum of what is spent and reserved never passes a budget, however many ask
at once. Each replica keeps its own total spent, which only grows; what is spent of a budget is the sum over replicas
that ever ran. Telling a total twice changes nothing, so a shared state that was away or has forgotten is made whole by
every replica telling its totals again (a grow-only counter: Shapiro et al., "A comprehensive study of convergent and
commutative replicated data types", 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Protocol

from router.core.state import Work

#: An amount that has flowed back is not refused for the last bit of a floating-point sum.
SLACK = 1e-9
#: The same for money: a millionth of a cent.
SLACK_USD = 1e-8
#: The period of a budget that never ends.
TOTAL = "total"
#: Budgets of days before today that are still known: an answer may end long after its day.
_DAYS_KEPT = 3


# --- limits and money ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: holds at most `capacity`, refills at `refill_per_s`. Full when first seen."""

    name: str
    capacity: float
    refill_per_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Money that a key may spend in one period. `period` is a day (`2026-11-22`, UTC) or `total`."""

    key: str
    period: str
    limit_usd: float


@dataclass(frozen=True, slots=True)
class Level:
    """What is in a bucket now, and how long it needs to be full, or to hold the amount asked for
    (`wait_s`, zero when it was there)."""

    level: float
    full_after_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Want:
    """What one request asks for: an amount of each bucket, and money: `reserve_usd` of each budget, or as much as is
    left, but not less than `least_usd`."""

    takes: Sequence[tuple[Bucket, float]] = ()
    budgets: Sequence[Budget] = ()
    reserve_usd: float = 0.0
    least_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a `Want`: all of it or nothing. `levels` are those of its buckets. `short` is the budget that has
    less than `least_usd` left; else, if no level has a `wait_s`, `reserved_usd` is reserved in each budget.
    `left_usd` is the least that is left of any of them, what this reserved not counted (None without budgets)."""

    levels: Sequence[Level] = ()
    short: Budget | None = None
    reserved_usd: float = 0.0
    left_usd: float | None = None

    @property
    def given(self) -> bool:
        """Whether everything asked for was there."""
        return self.short is None and not any(level.wait_s for level in self.levels)


# --- what replicas tell each other --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class View:
    """What one replica tells: its work by instance, how often it took each instance out for failing, and the turns it has
    passed on since the last time: by what is taken in turn, the name (instance, model) that had its turn last. `queued`
    counts by model what waits here for a slot."""

    work: Mapping[str, Work] = field(default_factory=dict)
    ejections: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """What is known of the others. `replicas` counts all that live, this one too; `work` is the sum over the others by
    instance; `ejected` are the instances that another has taken out since the last time, `turns` those that others
    passed on since then. `queued` is the sum over the others by model."""

    replicas: int = 1
    work: Mapping[str, Work] = field(default_factory=dict)
    ejected: frozenset[str] = frozenset()
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateHealth:
    """For metrics. `connected`: the shared state answers (always true in memory). `exchanges`, `failures` and
    `exchange_s` (the sum of their times) count since the start; `alone_s` is how long this replica has gone by its own
    view, all told."""

    shared: bool = False
    connected: bool = True
    replicas: int = 1
    exchanges: int = 0
    failures: int = 0
    exchange_s: float = 0.0
    alone_s: float = 0.0


class Listener(Protocol):
    """What a state calls, in the event loop, from `State.start` on."""

    def view(self) -> View:
        """What this replica tells now."""
        ...

    def hear(self, peers: Peers) -> None:
        """What the others told."""
        ...

    def hear_lessons(self, lessons: Sequence[bytes]) -> None:
        """What others learned, in the order in which it reached the shared state."""
        ...

    def changed(self, document: str, content: Mapping[str, Any]) -> None:
        """A shared document has been changed, here or elsewhere (also called with those there are at the start)."""
        ...


class State(Protocol):
    """Shared state. Asynchronous where an answer from another machine is waited for."""

    async def start(self, listener: Listener) -> None:
        """Begin to share."""
        ...

    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        """Begin with what the store knows: USD by (key, period) and run. Amounts of one run only ever grow, so
        telling less than is known changes nothing."""
        ...

    async def take(self, want: Want, now: float) -> Grant:
        """Take all that is wanted, or nothing. Whoever is cancelled while it waits has taken nothing: an answer that comes
        later is given back."""
        ...

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        """Put back what was taken too much; a negative amount takes more, below zero if need be. Nothing is
        answered, so that a state elsewhere may send it on later."""
        ...

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        """Replace a reservation in each budget by what was spent. Also how a cost without a reservation is told."""
        ...

    def spent_usd(self, key: str, period: str) -> float:
        """What is spent of a budget, as far as is known here."""
        ...

    def tell(self, lesson: bytes) -> None:
        """Tell the others what was learned here. Best effort: nothing is kept for who is away."""
        ...

    async def change(
        self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Change a shared document (JSON; empty at first), atomically among replicas: `edit` is asked again if another
        was faster. Every listener hears `changed`. Raises StateError if the shared state does not answer."""
        ...

    def poke(self) -> None:
        """Something that others should know soon has changed (work, turns)."""
        ...

    @property
    def health(self) -> StateHealth: ...

    async def aclose(self) -> None:
        """Take leave of the others and let go of connections."""
        ...


class StateError(Exception):
    """The shared state does not answer. The message holds no credentials."""


class StateRefused(StateError):
    """It answers, and does not let this gateway in: waiting changes nothing."""


def taken(level: float, bucket: Bucket, amount: float, granted: bool) -> Level:
    """A bucket's `Level` after an amount was asked of its `level`."""
    wait_s = 0.0 if granted else max(0.0, amount - level - SLACK) / bucket.refill_per_s
    left = level - amount if granted else level
    return Level(left, (bucket.capacity - left) / bucket.refill_per_s, wait_s)


def left_of(want: Want, left_usd: Callable[[Budget], float]) -> tuple[float | None, Budget | None]:
    """The least that is left of a want's budgets (None without any), and the budget that has too little, if any.
    `left_usd` tells what is left of one."""
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
    """State of one process, the run `run_id`. Buckets and budgets are as many as keys; budgets of past days are
    forgotten."""

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id
        self._earlier_usd: dict[tuple[str, str], dict[str, float]] = {}  # what other runs have spent
        self._levels: dict[str, tuple[float, float]] = {}  # level, when
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
        if now < at:  # the clock was set back: count from here on
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
        told = []
        for level, (bucket, amount) in zip(levels, want.takes, strict=True):
            told.append(taken(level, bucket, amount, granted))
            if granted:
                self._levels[bucket.name] = (level - amount, now)
        return Grant(told, short, reserved_usd, left_usd)

    def _held_usd(self, budget: Budget) -> float:
        name = budget.key, budget.period
        return self.spent_usd(*name) + self._reserved_usd.get(name, 0.0)

    def _name(self, budget: Budget) -> tuple[str, str]:
        """The budget's name. A new day's first budget makes days long past forgotten."""
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
