"""A request's admission to what its key, and the keys that made it, may still take.

In two steps, each all or nothing: before any work one request, one slot and one token; when the prompt is known the rest of
its tokens, and its money. So whatever runs side by side, what is spent and held never passes a budget, and a request that
is refused takes one request at most. A key without limits and budgets takes nothing; what it spends is counted at the end
all the same.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from router.background import Tasks
from router.core.errors import Refusal
from router.core.money.quote import Quote
from router.core.money.reservation import Funding
from router.core.refusals import insufficient_quota
from router.core.types import Outcome
from router.gateway.keys.accounts import Account
from router.gateway.keys.keyring import Headers, duration
from router.gateway.keys.reservation import KeyReservation
from router.store.state import SLACK, TOTAL, Bucket, Budget, Claim, Grant, State

#: USD by (key, period) and run, as a store tells what was spent.
Spent = Mapping[tuple[str, str], Mapping[str, float]]

_DAY_S = 86_400
#: More is never held for a request whose answer nothing bounds.
_MOST_USD = 1e9


class BudgetAdmission:
    """Hands out the leases of all requests. One a process; it outlives changes of the fleet file. `clock` gives
    seconds since the epoch."""

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.clock = clock
        self._tasks = Tasks()
        self._day = 0  # of what follows, since the epoch
        self._budgets: dict[str, tuple[Account, Sequence[Budget]]] = {}  # by key, as they were made for it

    async def enter(
        self,
        account: Account,
        arrived_at: float,
        headers: Headers,
        tokens: float = 1.0,
        *,
        sends: bool = True,
    ) -> KeyReservation:
        """Take one request, one slot (if anything is to be sent) and so many tokens from the account's limits: before any
        work is done for the request one token, which tells whether there are any. Its lease then takes the rest (`hold`),
        and must be settled however the request ends.

        The day of `arrived_at` (seconds since the epoch) is the request's for its whole life. The `x-ratelimit-*`
        headers to send are appended to `headers`, also when the answer is the 429 that is raised."""
        reservation = KeyReservation(
            self.state, self.clock, self.run, account, self._budgets_of(account, arrived_at)
        )
        slots = account.slots if sends else ()
        if account.requests or account.tokens or slots:
            reservation.tokens = [(each, min(tokens, each.capacity)) for each in account.tokens]
            takes = [*((each, 1.0) for each in account.requests), *reservation.tokens]
            grant = await self.state.take(Claim(takes, slots, 1.0, SLACK), self.clock())
            reservation.slot = grant.reserved_usd
            _told(account, takes, grant, headers)
        return reservation

    async def hold(
        self, reservation: KeyReservation, tokens: float, quote: Quote | None, headers: Headers
    ) -> None:
        """Take a request's estimated `tokens` (prompt and output) from its account's limits, and hold money for it as
        quoted (None for an account that is not `budgeted`). Raises the 429s. An estimate beyond what a bucket ever holds
        takes all of it: an upper bound must not shut a request out for good."""
        account = reservation.account
        if quote is None and not account.tokens:
            return
        takes = [(each, min(max(0.0, tokens), each.capacity) - taken) for each, taken in reservation.tokens]
        claim = Claim(takes)
        if quote is not None:
            claim = Claim(takes, reservation.budgets, min(quote.first_usd, _MOST_USD), quote.least_usd)
        grant = await self.state.take(claim, self.clock())
        _told(account, takes, grant, headers)
        reservation.tokens = [
            (bucket, before + more)
            for (bucket, before), (_, more) in zip(reservation.tokens, takes, strict=True)
        ]
        if quote is not None:
            reservation.funding = Funding(grant.reserved_usd, grant.left_usd, quote.step_usd, quote.most_usd)

    async def take(self, bucket: Bucket, what: str) -> None:
        """Take one from a bucket that belongs to no account. Raises the 429, which says `what` there was too much of."""
        (level,) = (await self.state.take(Claim([(bucket, 1.0)]), self.clock())).levels
        if level.wait_s > 0:
            message = f"Too many {what}; try again in {duration(level.wait_s)}."
            raise Refusal(
                429, "rate_limit_exceeded", message, Outcome.REJECTED_RATE, retry_after_s=level.wait_s
            )

    def _budgets_of(self, account: Account, now: float) -> Sequence[Budget]:
        if now // _DAY_S != self._day:
            self._day = int(now // _DAY_S)
            self._budgets.clear()
        known = self._budgets.get(account.name)
        if known is None or known[0] is not account:
            known = self._budgets[account.name] = account, account.budgets(now)
        return known[1]

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what must come to its end, whoever has given up waiting for it."""
        return self._tasks.start(work, "budgets")

    async def aclose(self) -> None:
        """Wait for what still runs."""
        await self._tasks.finish()


def _told(account: Account, takes: list[tuple[Bucket, float]], grant: Grant, headers: Headers) -> None:
    """Say what a grant says: of several limits the header tells the one with the least left. Raises the 429."""
    levels = [(bucket, level) for (bucket, _), level in zip(takes, grant.levels, strict=True)]
    wait_s, exhausted = 0.0, ""
    first_tokens = len(takes) - len(account.tokens)
    for what, some in (("requests", levels[:first_tokens]), ("tokens", levels[first_tokens:])):
        if not some:
            continue
        bucket, least = min(some, key=lambda each: each[1].level)
        kind = f"-{what}".encode()
        headers[:] = [header for header in headers if not header[0].endswith(kind)]  # of an earlier take
        headers += (
            (f"x-ratelimit-limit-{what}".encode(), f"{bucket.capacity:.0f}".encode()),
            (f"x-ratelimit-remaining-{what}".encode(), b"%d" % max(0, math.floor(least.level + 1e-9))),
            (f"x-ratelimit-reset-{what}".encode(), duration(least.full_after_s).encode()),
        )
        for bucket, level in some:
            if level.wait_s > wait_s:
                whose = "The key's" if bucket.name == f"{account.name}/{what}" else "Its maker's"
                wait_s, exhausted = level.wait_s, f"{whose} {what} per minute are used up"
    if grant.short is not None and grant.short in account.slots:
        whose = "The key" if grant.short.key == f"{account.name}/slots" else "A key that made this key"
        raise Refusal(
            429,
            "rate_limit_exceeded",
            f"{whose} has as many requests under way as it may; try again when one has ended.",
            Outcome.REJECTED_RATE,
            retry_after_s=1.0,
        )
    if grant.short is not None:
        raise insufficient_quota(_spent(account, grant.short, grant.left_usd or 0.0))
    if exhausted:
        message = f"{exhausted}; try again in {duration(wait_s)}."
        raise Refusal(429, "rate_limit_exceeded", message, Outcome.REJECTED_RATE, retry_after_s=wait_s)


def _spent(account: Account, short: Budget, left_usd: float) -> str:
    when = "" if short.period == TOTAL else " for today (UTC)"
    if short.key != account.name:  # how much its maker has is no business of its holder's
        return f"The budget of the key that made this key{when} is spent, or held by requests under way."
    whose = f"The key's budget of {_plain(short.limit_usd)} USD{when}"
    if left_usd > 0:
        return f"{whose} has {_plain(left_usd)} USD left, which cannot pay this request."
    return f"{whose} is spent, or held by requests under way."


def _plain(usd: float) -> str:
    """An amount without an exponent."""
    return f"{usd:.9f}".rstrip("0").rstrip(".")


def rolled_up(spent: Spent, accounts: Mapping[str, Account]) -> dict[tuple[str, str], dict[str, float]]:
    """What was spent of each budget, from what each key spent itself (what was spent without a key stands under "", and
    counts nowhere): a key's spend counts for its makers too."""
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
