"""What a key may take: its own limits and budgets, and those of the keys that made it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from router.store.spending import today
from router.store.state import TOTAL, Bucket, Budget


@dataclass(frozen=True, slots=True)
class KeyBudget:
    """The budgets of one key in USD; None: no bound."""

    key: str
    per_day_usd: float | None = None
    total_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """One key's limits: `requests` and `tokens` are buckets, `key_budgets` budgets, `slots` the requests
    that may be under way at once, each its own first, then those of its maker, of its maker's maker and so on: whatever a key takes is
    taken from all of them. A slot is reserved like money, and never spent."""

    name: str
    requests: tuple[Bucket, ...] = ()
    tokens: tuple[Bucket, ...] = ()
    key_budgets: tuple[KeyBudget, ...] = ()
    slots: tuple[Budget, ...] = ()

    @property
    def budgeted(self) -> bool:
        """Whether money has to be reserved before a request is sent."""
        return any(each.per_day_usd is not None or each.total_usd is not None for each in self.key_budgets)

    def budgets(self, now: float) -> tuple[Budget, ...]:
        """Today's and the lasting budget of each purse (a limit of infinity where there is none: what is spent is
        counted all the same). `now` in seconds since the epoch."""
        day = today(now)
        return tuple(
            Budget(each.key, period, math.inf if limit_usd is None else limit_usd)
            for each in self.key_budgets
            for period, limit_usd in ((day, each.per_day_usd), (TOTAL, each.total_usd))
        )
