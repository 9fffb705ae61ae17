"""What one request holds of its key's limits and budgets, from its admission to its end.

Nobody knows what an answer will cost, and to hold the worst case would refuse others for nothing. So a lease begins
with what a usual answer costs and grows while the answer streams: what its attempts may have cost by now is told event
by event (`pays`), and when little is left, more is asked for, in a task of its own, ahead of the need. An event that is
not paid for waits (`cover`) until the answer is here: the stream goes on, or ends.

However the request ends, `settle` replaces what is held by what was spent, once: all of it, also what an engine made
beyond what was held. An answer of the state that comes later is given back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from router.gateway.keys.quote import Quote
from router.store.records import RequestRecord
from router.store.state import Bucket, Budget, Grant, Want

if TYPE_CHECKING:
    from router.gateway.keys.accounts import Account
    from router.gateway.keys.admission import BudgetAdmission

logger = logging.getLogger("headway")

#: More is asked for when less than this share of a step is left.
_AHEAD = 0.25
#: Steps double up to so many times the first: more would hold money for nothing.
_MOST_STEPS = 8.0
#: Money that is not there for a floating-point sum's last bits is there: a millionth of a cent.
_SLACK_USD = 1e-8


class Reservation:
    """One request's, of its key's `account`. `reserved_usd` is held in each of `budgets` where the request is
    `budgeted`, `left_usd` what the request could have in all as far as is known (None: no bound), `slot` what is held of
    the account's slots, `tokens` what was taken from buckets of tokens."""

    __slots__ = (
        "_asking",
        "_costs_usd",
        "_most_usd",
        "_refused",
        "_settled",
        "_step_usd",
        "_steps",
        "_till",
        "account",
        "budgeted",
        "budgets",
        "left_usd",
        "reserved_usd",
        "slot",
        "tokens",
    )

    def __init__(
        self, budget_admission: BudgetAdmission, account: Account, budgets: Sequence[Budget]
    ) -> None:
        self._till = budget_admission
        self.account = account
        self.budgets = budgets
        self.tokens: Sequence[tuple[Bucket, float]] = ()
        self.slot = 0.0
        self.budgeted = False
        self.reserved_usd = 0.0
        self.left_usd: float | None = None
        self._step_usd = self._most_usd = 0.0
        self._steps = 1.0
        self._costs_usd: dict[int, float] = {}  # by attempt: what it may have cost by now
        self._asking: asyncio.Task[None] | None = None
        self._refused = False  # the last time that more was asked for
        self._settled = False

    def fund(self, quote: Quote, grant: Grant) -> None:
        """Begin with the money that a quote was granted."""
        self.budgeted = True
        self.reserved_usd, self.left_usd = grant.reserved_usd, grant.left_usd
        self._step_usd, self._most_usd = quote.step_usd, quote.most_usd

    # --- while it runs -------------------------------------------------------------------------------
    def pays(self, attempt: int, cost_usd: float) -> bool:
        """Whether what an attempt may have cost by now is held, beside what the others cost. Asks for more ahead of
        the need."""
        self._costs_usd[attempt] = cost_usd
        rest_usd = self.reserved_usd - sum(self._costs_usd.values())
        if (
            rest_usd < _AHEAD * self._step_usd
            and self._asking is None
            and not (self._refused or self._settled)
            and self.reserved_usd < self._most_usd
        ):
            self._ask()
        return rest_usd >= -_SLACK_USD

    async def cover(self, attempt: int, cost_usd: float) -> bool:
        """The same, waiting until it is held, or known that the budgets do not have it."""
        while not self.pays(attempt, cost_usd):
            if self._settled:
                return False
            held_usd, asking = self.reserved_usd, self._asking
            await asyncio.wait([asking or self._ask()])  # which does not end with who waits for it
            if asking is None and self.reserved_usd <= held_usd:
                return False
        return True

    def bill(self, attempt: int, cost_usd: float) -> None:
        """An attempt has ended, and cost so much."""
        if self.budgeted:
            self._costs_usd[attempt] = cost_usd

    def _ask(self) -> asyncio.Task[None]:
        step_usd = self._step_usd * self._steps
        self._steps = min(2.0 * self._steps, _MOST_STEPS)
        missing_usd = sum(self._costs_usd.values()) - self.reserved_usd
        if missing_usd > 0 and self.reserved_usd >= self._most_usd:
            self._most_usd = math.inf  # the engine keeps to no bound, nor did the quote
        more_usd = max(min(step_usd, self._most_usd - self.reserved_usd), missing_usd)
        self._asking = self._till.run(self._grow(more_usd))
        return self._asking

    async def _grow(self, more_usd: float) -> None:
        budget_admission = self._till
        try:
            grant = await budget_admission.state.take(
                Want(budgets=self.budgets, reserve_usd=more_usd), budget_admission.clock()
            )
        except Exception:  # the task's root: a stream that waits for money must hear that none comes
            logger.exception("the state failed on a request's money")
            grant = Grant()
        self._asking = None
        if self._settled:
            budget_admission.state.settle(self.budgets, grant.reserved_usd, 0.0)
            return
        if grant.left_usd is not None:
            self.left_usd = self.reserved_usd + max(0.0, grant.left_usd)
        self.reserved_usd += grant.reserved_usd
        self._refused = not grant.reserved_usd

    # --- its end -------------------------------------------------------------------------------------
    def settle(self, record: RequestRecord) -> None:
        """The request has ended as its record says: money held becomes money spent, and tokens that were taken are
        those that were used. Only the first call counts."""
        self.close(record.cost_usd or 0.0, used(record))

    def close(self, spent_usd: float, used_tokens: float | None = None) -> None:
        """The same, by what was spent and used (None: all tokens that were taken)."""
        if self._settled:
            return
        self._settled = True
        state = self._till.state
        if self.slot:
            state.settle(self.account.slots, self.slot, 0.0)
        if self.reserved_usd or spent_usd:
            state.settle(self.budgets, self.reserved_usd, spent_usd)
        if self.tokens and used_tokens is not None:
            now = self._till.clock()
            for bucket, taken_tokens in self.tokens:
                if used_tokens != taken_tokens:
                    state.give(bucket, taken_tokens - used_tokens, now)


def used(record: RequestRecord) -> int:
    """Tokens that count against a limit: prompt and output, where any engine was given the prompt to work on."""
    worked = any(each.billed for each in record.attempt_records)
    return (record.prompt_tokens or 0) + (record.output_tokens or 0) if worked else 0
