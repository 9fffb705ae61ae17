"""A replica's view of the money that all replicas have spent and reserved, and the part that Redis does not have yet.

For every run there is the total that it has spent of a budget. Totals only grow, so the larger of two values is the newer
one, and sending a total twice changes nothing. A reservation is sent as a total too, only by the replica that holds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from router.store.state import TOTAL, Budget, oldest_kept

#: (key, period)
Name = tuple[str, str]

#: Most budgets in one exchange, and most totals of other runs.
_PAGE = 500


@dataclass(slots=True)
class Line:
    """One budget in USD: the spending of each run and their sum, the reservations of this replica and of the others, and
    the values of this replica that Redis last acknowledged."""

    by_run: dict[str, float] = field(default_factory=dict)
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    reserved_elsewhere_usd: float = 0.0
    told_spent_usd: float = 0.0
    told_reserved_usd: float = 0.0

    def spent_by(self, run: str, usd: float) -> bool:
        """Set a run's total. True if it is larger than before."""
        more = usd - self.by_run.get(run, 0.0)
        if more <= 0:
            return False
        self.by_run[run] = usd
        self.spent_usd += more
        return True


@dataclass(frozen=True, slots=True)
class Telling:
    """The money in one exchange: this replica's (spent, reserved) by budget, and totals of other runs."""

    own: Mapping[Name, tuple[float, float]]
    spent: list[tuple[str, str, float]]
    reserved: list[tuple[str, float]]


class Books:
    """All budgets by name. `run_id` is this replica's run."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._lines: dict[Name, Line] = {}
        self._changed: dict[Name, None] = {}
        self._foreign: dict[tuple[Name, str], None] = {}
        self._oldest = ""

    def line(self, name: Name) -> Line:
        """The budget's line, created at the first use."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line()
            if name[1] != TOTAL and oldest_kept(name[1]) > self._oldest:
                self._forget(oldest_kept(name[1]))
        return line

    def _forget(self, oldest: str) -> None:
        self._oldest = oldest
        for name in [each for each in self._lines if each[1] != TOTAL and each[1] < oldest]:
            del self._lines[name]
            self._changed.pop(name, None)

    def load(self, spent: Mapping[Name, Mapping[str, float]]) -> dict[Name, float]:
        """Load totals by run from the store. Returns the increase of each budget's spending."""
        news = {}
        for name, by_run in spent.items():
            line = self.line(name)
            before_usd = line.spent_usd
            for run, usd in by_run.items():
                if line.spent_by(run, usd):
                    self._foreign[name, run] = None
            news[name] = line.spent_usd - before_usd
        return news

    def spent_usd(self, name: Name) -> float:
        """The known spending of all replicas from a budget."""
        line = self._lines.get(name)
        return 0.0 if line is None else line.spent_usd

    # --- changes by this replica ---
    def settle(self, name: Name, reserved_usd: float, spent_usd: float) -> None:
        """Replace a reservation by the actual spending."""
        line = self.line(name)
        if reserved_usd:
            line.reserved_usd = left_over(line.reserved_usd - reserved_usd)
        if spent_usd:
            line.spent_by(self._run, line.by_run.get(self._run, 0.0) + spent_usd)
        self._changed[name] = None

    def reserve(self, budgets: Iterable[Budget], usd: float) -> None:
        """Add a reservation that this replica decided itself."""
        for budget in budgets:
            name = budget.key, budget.period
            self.line(name).reserved_usd += usd
            self._changed[name] = None

    def granted(self, budgets: Iterable[Budget], usd: float) -> None:
        """Add a reservation that Redis granted."""
        for budget in budgets:
            line = self.line((budget.key, budget.period))
            line.reserved_usd += usd
            line.told_reserved_usd += usd

    # --- exchanges with Redis ---
    @property
    def untold(self) -> bool:
        """True if Redis does not have everything yet."""
        return bool(self._changed or self._foreign)

    def tell_all(self) -> None:
        """Mark everything for sending: Redis may have lost its data, and has no reservation of this replica."""
        self._foreign = {
            (name, run): None for name, line in self._lines.items() for run in line.by_run if run != self._run
        }
        for name, line in self._lines.items():
            line.told_spent_usd = line.told_reserved_usd = 0.0
            if line.reserved_usd or self._run in line.by_run:
                self._changed[name] = None

    def telling(self) -> Telling:
        """The next page to send. Call `told` when Redis has acknowledged it."""
        own, spent, reserved = {}, [], []
        for name in itertools.islice(self._changed, _PAGE):
            line = self._lines[name]
            mine_usd = line.by_run.get(self._run, 0.0)
            own[name] = mine_usd, line.reserved_usd
            if mine_usd != line.told_spent_usd:
                spent.append((in_redis(name), self._run, mine_usd))
            if line.reserved_usd != line.told_reserved_usd:
                reserved.append((in_redis(name), line.reserved_usd))
        for name in own:
            del self._changed[name]
        for name, run in list(itertools.islice(self._foreign, _PAGE)):
            del self._foreign[name, run]
            if name in self._lines:
                spent.append((in_redis(name), run, self._lines[name].by_run[run]))
        return Telling(own, spent, reserved)

    def told(self, telling: Telling) -> None:
        """Redis has acknowledged this page."""
        for name, (spent_usd, reserved_usd) in telling.own.items():
            if name in self._lines:
                line = self._lines[name]
                line.told_spent_usd, line.told_reserved_usd = spent_usd, reserved_usd

    def heard(self, in_redis: str, run: str, spent_usd: float, held_usd: float) -> None:
        """Take over a change from Redis: the total that another run has spent, and the reservations of all replicas."""
        period, _, key = in_redis.partition(":")
        if period != TOTAL and period < self._oldest:
            return
        line = self.line((key, period))
        line.spent_by(run, spent_usd)
        line.reserved_elsewhere_usd = left_over(held_usd - line.told_reserved_usd)

    # --- local fallback ---
    def standing(self) -> dict[Name, tuple[float, float]]:
        """For each budget, the USD spent or reserved when Redis last answered, and this replica's part of them."""
        standing = {}
        for name, line in self._lines.items():
            own_usd = line.told_spent_usd + line.told_reserved_usd
            others_usd = line.spent_usd - line.by_run.get(self._run, 0.0) + line.reserved_elsewhere_usd
            standing[name] = own_usd + others_usd, own_usd
        return standing

    def own_usd(self, name: Name) -> float:
        """This replica's spending and reservations from a budget."""
        line = self._lines.get(name)
        return 0.0 if line is None else line.by_run.get(self._run, 0.0) + line.reserved_usd


def left_over(usd: float) -> float:
    """The difference of two sums, or zero if it is only a rounding error."""
    return usd if usd > 1e-12 else 0.0


def in_redis(name: Name) -> str:
    """A budget's name in Redis. A period has no colon."""
    key, period = name
    return f"{period}:{key}"
