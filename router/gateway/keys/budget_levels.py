"""How much of the keys' budgets is spent, for metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

from router.gateway.keys.accounts import Account
from router.gateway.telemetry.sources import BudgetLevel
from router.store.state import TOTAL, State


def budget_levels(accounts: Mapping[str, Account], state: State) -> Iterator[BudgetLevel]:
    """Each key's own budgets of today and of all time, with their spending."""
    now = time.time()
    for name, account in accounts.items():
        for budget in account.budgets(now):
            if budget.key == name and math.isfinite(budget.limit_usd):
                period = TOTAL if budget.period == TOTAL else "day"
                spent_usd = state.spent_usd(name, budget.period)
                yield BudgetLevel(name, period, spent_usd, budget.limit_usd)
