"""A state that checks itself at every step: no budget is ever passed, whatever runs side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from router.store.memory_state import MemoryState
from router.store.state import Budget, Claim, Grant

_ROUNDING_USD = 1e-9


class Audited(MemoryState):
    """`broken` tells what did not hold. `refused` is how often money was refused to a request that had none, and
    `spent_when_refused_usd` what had been spent of the budget that was short when that happened first."""

    def __init__(self, delay_s: float = 0.0) -> None:
        """`delay_s`: how long each answer of `take` is on its way after it was decided, as from another machine."""
        super().__init__()
        self.delay_s = delay_s
        self.broken: list[str] = []
        self.takes = 0
        self.refused = 0
        self.spent_when_refused_usd: float | None = None
        self.limits_usd: dict[tuple[str, str], float] = {}
        self.beyond_usd: dict[tuple[str, str], float] = {}  # what engines made beyond what was held

    async def take(self, claim: Claim, now: float) -> Grant:
        self.takes += 1
        for budget in claim.budgets:
            self.limits_usd[budget.key, budget.period] = budget.limit_usd
        if self.delay_s:
            await asyncio.sleep(self.delay_s / 2)
        grant = await super().take(claim, now)
        if grant.short is not None and claim.least_usd:
            self.refused += 1
            if self.spent_when_refused_usd is None:
                self.spent_when_refused_usd = self.spent_usd(grant.short.key, grant.short.period)
        self.check()
        if self.delay_s:
            try:
                await asyncio.sleep(self.delay_s / 2)
            except asyncio.CancelledError:  # as Redis does with an answer that nobody waits for any more
                if grant.given:
                    self.settle(claim.budgets, grant.reserved_usd, 0.0)
                    for bucket, amount in claim.takes:
                        self.give(bucket, amount, now)
                raise
        return grant

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        for budget in budgets:
            held_usd = self._ledger.balance((budget.key, budget.period)).reserved_usd
            if reserved_usd > held_usd + _ROUNDING_USD:
                self.broken.append(f"{reserved_usd} is given back of {held_usd} of {budget}")
            name = budget.key, budget.period
            self.beyond_usd[name] = self.beyond_usd.get(name, 0.0) + max(0.0, spent_usd - reserved_usd)
        super().settle(budgets, reserved_usd, spent_usd)
        self.check()

    def check(self) -> None:
        """No budget is passed but by what engines made beyond what was held, nothing is below zero."""
        for name, limit_usd in self.limits_usd.items():
            balance = self._ledger.balance(name)
            spent_usd, reserved_usd = balance.spent_usd, balance.reserved_usd
            if spent_usd + reserved_usd > limit_usd + self.beyond_usd.get(name, 0.0) + _ROUNDING_USD:
                self.broken.append(f"{name}: {spent_usd} spent and {reserved_usd} held of {limit_usd}")
            if min(spent_usd, reserved_usd) < -_ROUNDING_USD:
                self.broken.append(f"{name}: {spent_usd} spent, {reserved_usd} held")

    @property
    def reserved(self) -> dict[tuple[str, str], float]:
        """What is held now, by (key, period)."""
        balances = self._ledger._balances.items()
        return {name: balance.reserved_usd for name, balance in balances if balance.reserved_usd}
