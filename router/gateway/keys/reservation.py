"""What one request has taken of its key's limits and budgets, from its admission to its end.

How much money a request needs is decided by the scheduler (`router.core.money`); this carries it out. However the request
ends, `close` replaces what is reserved by what was spent, once. A grant that comes later is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from router.core.money.reservation import Funding
from router.store.state import Bucket, Budget, Grant, Want

if TYPE_CHECKING:
    from router.gateway.keys.accounts import Account
    from router.gateway.keys.admission import BudgetAdmission

logger = logging.getLogger("headway")


class KeyReservation:
    """One request's. `tokens` is what it took from buckets of tokens, `slot` what it holds of the account's slots, `funding` is
    the money granted at its start (None: no budget bounds it)."""

    __slots__ = ("_admission", "_budgets", "_closed", "account", "funding", "slot", "tokens")

    def __init__(self, admission: BudgetAdmission, account: Account, budgets: Sequence[Budget]) -> None:
        self._admission = admission
        self._budgets = budgets
        self._closed = False
        self.account = account
        self.tokens: Sequence[tuple[Bucket, float]] = ()
        self.slot = 0.0
        self.funding: Funding | None = None

    @property
    def budgets(self) -> Sequence[Budget]:
        """The budgets that it counts against."""
        return self._budgets

    def grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        """Take more money in a task of its own. `then` gets what was reserved (0: nothing) and what the budgets had left
        before, unless the request has ended by then."""
        self._admission.run(self._grow(usd, then))

    async def _grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        admission = self._admission
        try:
            grant = await admission.state.take(
                Want(budgets=self._budgets, reserve_usd=usd), admission.clock()
            )
        except Exception:  # the task's root: a stream that waits for money must hear that none comes
            logger.exception("the state failed on a request's money")
            grant = Grant()
        if self._closed:
            admission.state.settle(self._budgets, grant.reserved_usd, 0.0)
        else:
            then(grant.reserved_usd, grant.left_usd)

    def cancel(self) -> None:
        """The request ended before it was sent anywhere: give money and tokens back."""
        self.close(0.0 if self.funding is None else self.funding.reserved_usd, 0.0, 0)

    def close(self, reserved_usd: float, spent_usd: float, used_tokens: int | None = None) -> None:
        """The request has ended: money reserved becomes money spent, and tokens taken become tokens used (None: all
        that were taken). Only the first call counts."""
        if self._closed:
            return
        self._closed = True
        state = self._admission.state
        if self.slot:
            state.settle(self.account.slots, self.slot, 0.0)
        if reserved_usd or spent_usd:
            state.settle(self._budgets, reserved_usd, spent_usd)
        if self.tokens and used_tokens is not None:
            now = self._admission.clock()
            for bucket, taken_tokens in self.tokens:
                if used_tokens != taken_tokens:
                    state.give(bucket, taken_tokens - used_tokens, now)
