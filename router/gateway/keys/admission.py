"""Admits a request by the limits and budgets of its key, and of the keys that made it.

There are two steps, each all or nothing. Before any work, one request, one slot and one token are taken. When the
prompt is known, the rest of its tokens and its money are taken. So spending and reservations together never exceed a
budget, however many requests run at once, and a refused request costs one request at most. A key without limits and
budgets takes nothing, but its spending is counted at the end.

The scheduler decides how much money a request needs (`router.core.money`); this module takes it. However the request
ends, `KeyReservation.close` replaces the reserved money by the spent money, once. A grant that arrives after the end is
returned.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from router.background import Tasks
from router.compiled import compiled_init
from router.core.errors import rate_limited
from router.core.money.quote import Quote
from router.core.money.reservation import Funding
from router.core.refusals import insufficient_quota
from router.gateway.keys.accounts import Account
from router.store.state import TOTAL, Bucket, Budget, Claim, Grant, State

logger = logging.getLogger("headway")

#: Of a response.
Headers = list[tuple[bytes, bytes]]
#: The headers of a kind of limit: its capacity, what is left, and when it is full again.
_HEADERS = {
    what: tuple(f"x-ratelimit-{name}-{what}".encode() for name in ("limit", "remaining", "reset"))
    for what in ("requests", "tokens")
}

_DAY_S = 86_400
#: What a duration may be above a whole number by rounding.
_ROUNDING = 5e-7
#: The most money that is reserved for a request whose output has no bound.
_MOST_USD = 1e9


class BudgetAdmission:
    """Takes from limits and budgets for all requests. One a process; a changed fleet file does not replace it. `clock`
    gives seconds since the epoch."""

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.clock = clock
        self._tasks = Tasks()
        self._day = 0  # the day of `_budgets`, in days since the epoch
        # By key, with the account that they were made for.
        self._budgets: dict[str, tuple[Account, Sequence[Budget]]] = {}

    async def enter(
        self,
        account: Account,
        arrived_at: float,
        headers: Headers,
        tokens: float = 1.0,
        *,
        sends: bool = True,
    ) -> KeyReservation:
        """Take one request, one slot (if something is to be sent) and `tokens` tokens from the account's limits. Before
        any work is done for the request, one token shows whether there are any; `hold` takes the rest. The returned
        reservation must be closed, however the request ends.

        The day of `arrived_at` (seconds since the epoch) is the request's day for its whole life. The `x-ratelimit-*`
        headers of the answer are appended to `headers`, also if the answer is the 429 that is raised.
        """
        reservation = KeyReservation(self, account, self._budgets_of(account, arrived_at))
        slots = account.slots if sends else ()
        if account.requests or account.tokens or slots:
            reservation.tokens = [(each, min(tokens, each.capacity)) for each in account.tokens]
            takes = [*((each, 1.0) for each in account.requests), *reservation.tokens]
            grant = await self.state.take(Claim(takes, slots, 1.0, 1.0), self.clock())
            reservation.slot = grant.reserved_usd
            _add_headers(account, takes, grant, headers)
        return reservation

    async def hold(
        self, reservation: KeyReservation, tokens: float, quote: Quote | None, headers: Headers
    ) -> None:
        """Take a request's estimated `tokens` (prompt and output) from its account's limits, and reserve the quoted
        money (None for an account that is not `budgeted`). Raises the 429s. An estimate above a bucket's capacity takes
        the whole capacity: otherwise an upper bound would refuse the request forever."""
        account = reservation.account
        if quote is None and not account.tokens:
            return
        takes = [(each, min(max(0.0, tokens), each.capacity) - taken) for each, taken in reservation.tokens]
        before = reservation.tokens
        claim = Claim(takes, before=before)
        if quote is not None:
            reserve_usd = min(quote.first_usd, _MOST_USD)
            claim = Claim(takes, reservation.budgets, reserve_usd, quote.least_usd, before)
        grant = await self.state.take(claim, self.clock())
        _add_headers(account, takes, grant, headers)
        reservation.tokens = [
            (bucket, before + more)
            for (bucket, before), (_, more) in zip(reservation.tokens, takes, strict=True)
        ]
        if quote is not None:
            reservation.funding = Funding(grant.reserved_usd, grant.left_usd, quote.step_usd, quote.most_usd)

    async def take_change(self, bucket: Bucket) -> None:
        """Take one from a bucket of changes of keys. Raises the 429."""
        (level,) = (await self.state.take(Claim([(bucket, 1.0)]), self.clock())).levels
        if level.wait_s > 0:
            message = f"Too many changes of keys; try again in {duration(level.wait_s)}."
            raise rate_limited(message, level.wait_s)

    def _budgets_of(self, account: Account, now: float) -> Sequence[Budget]:
        if now // _DAY_S != self._day:
            self._day = int(now // _DAY_S)
            self._budgets.clear()
        known = self._budgets.get(account.name)
        if known is None or known[0] is not account:
            known = self._budgets[account.name] = account, account.budgets(now)
        return known[1]

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work to its end, even if its caller no longer waits."""
        return self._tasks.start(work, "budgets")

    async def aclose(self) -> None:
        """Wait for work that is still running."""
        await self._tasks.finish()


@compiled_init
@dataclass(slots=True, eq=False)
class KeyReservation:
    """What one request has taken from its key's limits and budgets, from its admission to its end. It counts against
    `budgets`. `tokens` are the amounts that it took from token buckets, `slot` is what it has reserved of the account's
    slots, and `funding` is the money granted at its start (None: no budget bounds it)."""

    _admission: BudgetAdmission
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
        self._admission.run(self._grow(usd, then))

    async def _grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        try:
            claim = Claim(budgets=self.budgets, reserve_usd=usd)
            grant = await self._admission.state.take(claim, self._admission.clock())
        except Exception:  # the task's root: a stream that waits for money must get an answer
            logger.exception("the state failed on a request's money")
            grant = Grant()
        if self._closed:
            self._admission.state.settle(self.budgets, grant.reserved_usd, 0.0)
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
        state = self._admission.state
        if self.slot:
            state.settle(self.account.slots, self.slot, 0.0)
        if reserved_usd or spent_usd:
            state.settle(self.budgets, reserved_usd, spent_usd)
        if self.tokens and used_tokens is not None:
            now = self._admission.clock()
            for bucket, taken_tokens in self.tokens:
                if used_tokens != taken_tokens:
                    state.give(bucket, taken_tokens - used_tokens, now)


def _add_headers(account: Account, takes: list[tuple[Bucket, float]], grant: Grant, headers: Headers) -> None:
    """Append the headers of a grant: of several limits, the one with the least left. Raises the 429."""
    levels = list(zip(takes, grant.levels, strict=True))
    wait_s, exhausted = 0.0, ""
    first_tokens = len(takes) - len(account.tokens)
    for what, some in (("requests", levels[:first_tokens]), ("tokens", levels[first_tokens:])):
        if not some:
            continue
        (bucket, _), least = some[0] if len(some) == 1 else min(some, key=lambda each: each[1].level)
        limit, remaining, reset = names = _HEADERS[what]
        if headers:
            headers[:] = [header for header in headers if header[0] not in names]  # from an earlier take
        headers += (
            (limit, _whole(bucket.capacity)),
            (remaining, b"%d" % max(0, math.floor(least.level + 1e-9))),
            (reset, duration(least.full_after_s).encode()),
        )
        for (bucket, _), level in some:
            if level.wait_s > wait_s:
                whose = "The key's" if bucket.name == f"{account.name}/{what}" else "Its maker's"
                wait_s, exhausted = level.wait_s, f"{whose} {what} per minute are used up"
    if grant.short is not None and grant.short in account.slots:
        whose = "The key" if grant.short.key == f"{account.name}/slots" else "A key that made this key"
        message = f"{whose} has reached its max_concurrency; try again when a request has ended."
        raise rate_limited(message, retry_after_s=1.0)
    if grant.short is not None:
        raise insufficient_quota(_spent(account, grant.short, grant.left_usd or 0.0))
    if exhausted:
        raise rate_limited(f"{exhausted}; try again in {duration(wait_s)}.", wait_s)


@lru_cache(256)
def _whole(number: float) -> bytes:
    return b"%.0f" % number


def _spent(account: Account, short: Budget, left_usd: float) -> str:
    when = "" if short.period == TOTAL else " for today (UTC)"
    if short.key != account.name:  # a key's holder must not learn the budget of its maker
        return f"The budget of the key that made this key{when} is spent, or reserved by requests under way."
    whose = f"The key's budget of {_plain(short.limit_usd)} USD{when}"
    if left_usd > 0:
        return f"{whose} has {_plain(left_usd)} USD left, which cannot pay for this request."
    return f"{whose} is spent, or reserved by requests under way."


def _plain(usd: float) -> str:
    """An amount in decimal notation, without an exponent."""
    return f"{usd:.9f}".rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """A duration as OpenAI's rate-limit headers write it: `120ms`, `1s`, `6m0s`, `1h0m30s`; rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000 - _ROUNDING)}ms"
    whole = math.ceil(seconds - _ROUNDING)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{secs}s"
    return f"{minutes}m{secs}s" if minutes else f"{secs}s"
