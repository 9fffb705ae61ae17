"""What one request has taken of its key's limits and budgets, from its admission to its end.

How much money a request needs is decided by the scheduler (`router.core.money`); this carries it out. However the request
ends, `close` replaces what is reserved by what was spent, once. A grant that comes later is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from router.core.money.reservation import Funding
from router.gateway.keys.accounts import Account
from router.store.state import Bucket, Budget, Claim, Grant, State

logger = logging.getLogger("headway")


class KeyReservation:
    """One request's. `tokens` is what it took from buckets of tokens, `slot` what it holds of the account's slots, `funding` is
    the money granted at its start (None: no budget bounds it)."""

    __slots__ = ("_budgets", "_clock", "_closed", "_run", "_state", "account", "funding", "slot", "tokens")

    def __init__(
        self,
        state: State,
        clock: Callable[[], float],
        run: Callable[[Coroutine[Any, Any, None]], object],
        account: Account,
        budgets: Sequence[Budget],
    ) -> None:
        """`run` starts what must come to its end, whoever has given up waiting for it."""
        self._state = state
        self._clock = clock
        self._run = run
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
        self._run(self._grow(usd, then))

    async def _grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        try:
            grant = await self._state.take(Claim(budgets=self._budgets, reserve_usd=usd), self._clock())
        except Exception:  # the task's root: a stream that waits for money must hear that none comes
            logger.exception("the state failed on a request's money")
            grant = Grant()
        if self._closed:
            self._state.settle(self._budgets, grant.reserved_usd, 0.0)
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
        state = self._state
        if self.slot:
            state.settle(self.account.slots, self.slot, 0.0)
        if reserved_usd or spent_usd:
            state.settle(self._budgets, reserved_usd, spent_usd)
        if self.tokens and used_tokens is not None:
            now = self._clock()
            for bucket, taken_tokens in self.tokens:
                if used_tokens != taken_tokens:
                    state.give(bucket, taken_tokens - used_tokens, now)
