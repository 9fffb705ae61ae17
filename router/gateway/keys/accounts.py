"""The limits and budgets of a key: its own, and those of the keys that made it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from router.store.state import TOTAL, Bucket, Budget, State
from router.store.totals import today


@dataclass(frozen=True, slots=True)
class KeyBudget:
    """The budgets of one key in USD; None: no bound."""

    key: str
    per_day_usd: float | None = None
    total_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """The limits that one key's requests count against: `requests` and `tokens` are buckets, `key_budgets` budgets,
    `slots` bound the requests under way at once. Each has the key's own limits first, then its maker's, then its
    maker's maker's and so on: a request takes from all of them. A slot is reserved like money, and never spent."""

    name: str
    requests: tuple[Bucket, ...] = ()
    tokens: tuple[Bucket, ...] = ()
    key_budgets: tuple[KeyBudget, ...] = ()
    slots: tuple[Budget, ...] = ()

    @property
    def budgeted(self) -> bool:
        """Whether money must be reserved before a request is sent."""
        return any(each.per_day_usd is not None or each.total_usd is not None for each in self.key_budgets)

    def budgets(self, now: float) -> tuple[Budget, ...]:
        """The budgets of today and of all time, for the key and its makers. A budget without a bound has an infinite
        limit, because its spending is counted too. `now` is in seconds since the epoch."""
        day = today(now)
        return tuple(
            Budget(each.key, period, math.inf if limit_usd is None else limit_usd)
            for each in self.key_budgets
            for period, limit_usd in ((day, each.per_day_usd), (TOTAL, each.total_usd))
        )


def budget_levels(accounts: Iterable[Account], state: State) -> Iterator[tuple[str, str, float, float]]:
    """Each key's own budgets of today (`day`) and of all time: (key, period, spent in USD, limit in USD)."""
    now = time.time()
    for account in accounts:
        for budget in account.budgets(now):
            if budget.key == account.name and math.isfinite(budget.limit_usd):
                period = TOTAL if budget.period == TOTAL else "day"
                spent_usd = state.spent_usd(account.name, budget.period)
                yield account.name, period, spent_usd, budget.limit_usd
