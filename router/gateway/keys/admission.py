"""Admits a request by the limits and budgets of its key, and of the keys that made it.

There are two steps, each all or nothing. Before any work, one request, one slot and one token are taken. When the
prompt is known, the rest of its tokens and its money are taken. So spending and reservations together never exceed a
budget, however many requests run at once, and a refused request costs one request at most. A key without limits and
budgets takes nothing, but its spending is counted at the end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any

from router.background import Tasks
from router.core.errors import rate_limited
from router.core.money.quote import Quote
from router.core.money.reservation import Funding
from router.core.refusals import insufficient_quota
from router.gateway.keys.accounts import Account
from router.gateway.keys.reservation import KeyReservation
from router.store.state import TOTAL, Bucket, Budget, Claim, Grant, State

#: USD by (key, period) and run, as the store returns it.
Spent = Mapping[tuple[str, str], Mapping[str, float]]

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
        reservation = KeyReservation(
            self.state, self.clock, self.run, account, self._budgets_of(account, arrived_at)
        )
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

    async def take(self, bucket: Bucket, what: str) -> None:
        """Take one from a bucket that belongs to no account. Raises the 429; `what` names what there was too much of."""
        (level,) = (await self.state.take(Claim([(bucket, 1.0)]), self.clock())).levels
        if level.wait_s > 0:
            message = f"Too many {what}; try again in {duration(level.wait_s)}."
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


def rolled_up(spent: Spent, accounts: Mapping[str, Account]) -> dict[tuple[str, str], dict[str, float]]:
    """The spending of each budget, from the spending of each key: a key's spending counts for its makers too. Spending
    without a key (under "") counts for no budget."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (key, period), by_run in spent.items():
        if not key:
            continue
        account = accounts.get(key)
        counted = (key,) if account is None else tuple(each.key for each in account.key_budgets) or (key,)
        for name in counted:
            held = found.setdefault((name, period), {})
            for run, usd in by_run.items():
                held[run] = held.get(run, 0.0) + usd
    return found
