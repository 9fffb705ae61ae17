"""What one request has taken from its key's limits and budgets, from its admission to its end.

The scheduler decides how much money a request needs (`router.core.money`); this module takes it. However the request
ends, `close` replaces the reserved money by the spent money, once. A grant that arrives after the end is returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from router.compiled import compiled_init
from router.core.money.reservation import Funding
from router.gateway.keys.accounts import Account
from router.store.state import Bucket, Budget, Claim, Grant, State

logger = logging.getLogger("headway")


@compiled_init
@dataclass(slots=True, eq=False)
class KeyReservation:
    """The reservation of one request. It counts against `budgets`. `_run` runs work to its end, even if its caller no
    longer waits. `tokens` are the amounts that it took from token buckets, `slot` is what it has reserved of the account's
    slots, and `funding` is the money granted at its start (None: no budget bounds it)."""

    _state: State
    _clock: Callable[[], float]
    _run: Callable[[Coroutine[Any, Any, None]], object]
    account: Account
    budgets: Sequence[Budget]
    tokens: Sequence[tuple[Bucket, float]] = ()
    slot: float = 0.0
    funding: Funding | None = None
    _grown_usd: float = 0.0
    _closed: bool = False

    def grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        """Take more money, in a task of its own. `then` is called with the reserved amount (0: nothing) and with what
        the budgets had left before, unless the request has ended meanwhile."""
        self._run(self._grow(usd, then))

    async def _grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        try:
            grant = await self._state.take(Claim(budgets=self.budgets, reserve_usd=usd), self._clock())
        except Exception:  # the task's root: a stream that waits for money must get an answer
            logger.exception("the state failed on a request's money")
            grant = Grant()
        if self._closed:
            self._state.settle(self.budgets, grant.reserved_usd, 0.0)
        else:
            self._grown_usd += grant.reserved_usd
            then(grant.reserved_usd, grant.left_usd)

    def cancel(self, spent_usd: float = 0.0, used_tokens: int = 0) -> None:
        """The request ended without a settlement: return all money and tokens, except what was spent and used (nothing if the
        request was not sent)."""
        reserved_usd = 0.0 if self.funding is None else self.funding.reserved_usd
        self.close(reserved_usd + self._grown_usd, spent_usd, used_tokens)

    def close(self, reserved_usd: float, spent_usd: float, used_tokens: int | None = None) -> None:
        """The request has ended: replace the reserved money by the spent money, and the taken tokens by the used ones
        (None: all that were taken). Only the first call has an effect."""
        if self._closed:
            return
        self._closed = True
        state = self._state
        if self.slot:
            state.settle(self.account.slots, self.slot, 0.0)
        if reserved_usd or spent_usd:
            state.settle(self.budgets, reserved_usd, spent_usd)
        if self.tokens and used_tokens is not None:
            now = self._clock()
            for bucket, taken_tokens in self.tokens:
                if used_tokens != taken_tokens:
                    state.give(bucket, taken_tokens - used_tokens, now)
