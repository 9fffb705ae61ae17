"""The spending and reservations that this process knows. A replica also knows which of its own amounts Redis does not have
yet.

For each budget it has the total that each run ever spent. A total only grows: of two values the greater is the later, and
sending one twice changes nothing. Reservations are sent as totals too, each by its own replica only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from router.store.state import TOTAL, Budget

#: (key, period)
Name = tuple[str, str]

#: The most budgets, and the most totals of other runs, in one exchange.
_PAGE = 500
#: The most days whose budgets are kept: an answer may end long after its day.
_DAYS_KEPT = 5


@dataclass(slots=True)
class Balance:
    """One budget in USD: spent by each run and in sum, reserved by this replica and by the others, and this replica's
    amounts that Redis acknowledged last."""

    by_run: dict[str, float] = field(default_factory=dict)
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    reserved_elsewhere_usd: float = 0.0
    sent_spent_usd: float = 0.0
    sent_reserved_usd: float = 0.0

    def spent_by(self, run: str, usd: float) -> bool:
        """Set a run's total; whether it is greater than the known one."""
        more = usd - self.by_run.get(run, 0.0)
        if more <= 0:
            return False
        self.by_run[run] = usd
        self.spent_usd += more
        return True


@dataclass(frozen=True, slots=True)
class LedgerUpdate:
    """The money in one exchange: own (spent, reserved) by budget, and totals of other runs."""

    own: Mapping[Name, tuple[float, float]]
    spent: list[tuple[str, str, float]]
    reserved: list[tuple[str, float]]


class Ledger:
    """The ledger of one replica. `run_id` is its run."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._balances: dict[Name, Balance] = {}
        self._changed: dict[Name, None] = {}
        self._foreign: dict[tuple[Name, str], None] = {}
        self._days: dict[str, None] = {}

    def balance(self, name: Name) -> Balance:
        """A budget's balance, made at its first use."""
        balance = self._balances.get(name)
        if balance is None:
            balance = self._balances[name] = Balance()
            if name[1] != TOTAL and name[1] not in self._days:
                self._keep(name[1])
        return balance

    def _keep(self, day: str) -> None:
        """Add a day to those whose budgets are kept. The first to come goes first, whatever the calendar says: a clock that
        is years ahead for a moment must not make today's budgets new again."""
        self._days[day] = None
        if len(self._days) > _DAYS_KEPT:
            oldest = next(iter(self._days))
            del self._days[oldest]
            for name in [each for each in self._balances if each[1] == oldest]:
                del self._balances[name]
                self._changed.pop(name, None)

    def load(self, spent: Mapping[Name, Mapping[str, float]]) -> dict[Name, float]:
        """Load totals by run from the store. Returns how much of each budget was not known before."""
        added = {}
        for name, by_run in spent.items():
            balance = self.balance(name)
            before_usd = balance.spent_usd
            for run, usd in by_run.items():
                if balance.spent_by(run, usd):
                    self._foreign[name, run] = None
            added[name] = balance.spent_usd - before_usd
        return added

    def spent_usd(self, name: Name) -> float:
        """What all replicas have spent of a budget, as far as is known."""
        balance = self._balances.get(name)
        return 0.0 if balance is None else balance.spent_usd

    def left_usd(self, budget: Budget) -> float:
        """What is left of a budget, if no other replica spends it."""
        balance = self._balances.get((budget.key, budget.period))
        if balance is None:
            return budget.limit_usd
        return budget.limit_usd - balance.spent_usd - balance.reserved_usd

    # --- what happens here ---
    def settle(self, budgets: Iterable[Budget], reserved_usd: float, spent_usd: float) -> None:
        """Replace a reservation in each budget by what was spent."""
        for budget in budgets:
            name = budget.key, budget.period
            balance = self.balance(name)
            if reserved_usd:
                balance.reserved_usd = without_rounding(balance.reserved_usd - reserved_usd)
            if spent_usd:
                balance.spent_by(self._run, balance.by_run.get(self._run, 0.0) + spent_usd)
            self._changed[name] = None

    def reserve(self, budgets: Iterable[Budget], usd: float) -> None:
        """Reserve by this replica's own decision."""
        for budget in budgets:
            name = budget.key, budget.period
            self.balance(name).reserved_usd += usd
            self._changed[name] = None

    def granted(self, budgets: Iterable[Budget], usd: float) -> None:
        """Redis has reserved this for us."""
        for budget in budgets:
            balance = self.balance((budget.key, budget.period))
            balance.reserved_usd += usd
            balance.sent_reserved_usd += usd

    # --- exchanges ---
    @property
    def unsent(self) -> bool:
        """Whether anything is to be sent."""
        return bool(self._changed or self._foreign)

    def resend_all(self) -> None:
        """Send everything again: Redis may have lost its data, and holds no reservation of this replica."""
        self._foreign = {
            (name, run): None
            for name, balance in self._balances.items()
            for run in balance.by_run
            if run != self._run
        }
        for name, balance in self._balances.items():
            balance.sent_spent_usd = balance.sent_reserved_usd = 0.0
            if balance.reserved_usd or self._run in balance.by_run:
                self._changed[name] = None

    def update(self) -> LedgerUpdate:
        """The next page to send; `acknowledged` confirms it."""
        own, spent, reserved = {}, [], []
        for name in itertools.islice(self._changed, _PAGE):
            balance = self._balances[name]
            mine_usd = balance.by_run.get(self._run, 0.0)
            own[name] = mine_usd, balance.reserved_usd
            if mine_usd != balance.sent_spent_usd:
                spent.append((in_redis(name), self._run, mine_usd))
            if balance.reserved_usd != balance.sent_reserved_usd:
                reserved.append((in_redis(name), balance.reserved_usd))
        for name in own:
            del self._changed[name]
        for name, run in list(itertools.islice(self._foreign, _PAGE)):
            del self._foreign[name, run]
            if name in self._balances:
                spent.append((in_redis(name), run, self._balances[name].by_run[run]))
        return LedgerUpdate(own, spent, reserved)

    def acknowledged(self, update: LedgerUpdate) -> None:
        """Redis has received an update."""
        for name, (spent_usd, reserved_usd) in update.own.items():
            if name in self._balances:
                balance = self._balances[name]
                balance.sent_spent_usd, balance.sent_reserved_usd = spent_usd, reserved_usd

    def received(self, in_redis: str, run: str, spent_usd: float, held_usd: float) -> None:
        """Of a budget, another run's spending and all reservations."""
        period, _, key = in_redis.partition(":")
        balance = self.balance((key, period))
        balance.spent_by(run, spent_usd)
        balance.reserved_elsewhere_usd = without_rounding(held_usd - balance.sent_reserved_usd)

    # --- alone ---
    def used_at_last_answer(self) -> dict[Name, tuple[float, float]]:
        """By budget: what was used of it when Redis last answered, and this replica's own part of that."""
        used = {}
        for name, balance in self._balances.items():
            own_usd = balance.sent_spent_usd + balance.sent_reserved_usd
            others_usd = (
                balance.spent_usd - balance.by_run.get(self._run, 0.0) + balance.reserved_elsewhere_usd
            )
            used[name] = own_usd + others_usd, own_usd
        return used

    def own_usd(self, name: Name) -> float:
        """What this replica has spent and reserved of a budget."""
        balance = self._balances.get(name)
        return 0.0 if balance is None else balance.by_run.get(self._run, 0.0) + balance.reserved_usd


def without_rounding(usd: float) -> float:
    """A difference of sums; zero if it is only a rounding error."""
    return usd if usd > 1e-12 else 0.0


def in_redis(name: Name) -> str:
    """A budget's name in Redis. A period holds no colon."""
    key, period = name
    return f"{period}:{key}"
