"""Claims that wait for Redis. While Redis does not answer, this replica decides on them itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from router.store.ledger import Ledger, Name, in_redis
from router.store.redis_fallback import LocalFallback
from router.store.redis_timer import ExchangeTimer
from router.store.state import Bucket, Claim, Grant, taken

#: The most claims in one exchange: Redis does nothing else while it decides on them.
_CLAIMS = 200
#: The most levels kept before those of full buckets are dropped.
_LEVELS = 1000
#: JSON has no infinity: a budget without a limit gets one that nobody reaches.
_ENDLESS_USD = 1e300


class Claims:
    """In one of three states:

    shared     `fallback` is None: Redis grants
    alone      `fallback` is set, `rejoins_at` is None: this replica decides at once, by its share (`redis_fallback`)
    rejoining  both are set: Redis is back and has everything of this replica, but its share still decides until every
               other replica has had time to send its own
    """

    def __init__(self, ledger: Ledger, timer: ExchangeTimer, replicas: int = 1) -> None:
        """Starts alone, as one of `replicas`."""
        self._ledger = ledger
        self._timer = timer
        self.adjustments = BucketAdjustments()
        self.fallback: LocalFallback | None = LocalFallback(ledger, {}, replicas, time.monotonic())
        self.rejoins_at: float | None = None
        self.alone_s = 0.0  # until the last return
        self._waiting: list[tuple[Claim, asyncio.Future[Grant]]] = []
        self._sent: list[tuple[Claim, asyncio.Future[Grant]]] = []
        self._levels: dict[str, tuple[Bucket, float, float]] = {}
        self._levels_kept = _LEVELS

    async def take(self, claim: Claim) -> Grant:
        """Take everything, or nothing."""
        if self.fallback is not None:
            return self._decide(self.fallback, claim)
        answer: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, answer))
        self._timer.at_once()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # the answer arrived in the same turn
                self._let_go(claim, answer.result())
            raise

    def give(self, bucket: Bucket, amount: float) -> None:
        """Return an amount to a bucket. While alone it changes what Redis gets when it is back."""
        if self.fallback is not None:
            self.fallback.give(bucket, amount, time.monotonic())
        if self.fallback is None or self.rejoins_at is not None:
            self.adjustments.add(bucket, amount)
            self._timer.soon()

    def loaded(self, spent_usd: Mapping[Name, float]) -> None:
        """More was spent of budgets than was known."""
        if self.fallback is not None:
            self.fallback.loaded(spent_usd)

    def _let_go(self, claim: Claim, grant: Grant) -> None:
        """The caller waits no longer."""
        if grant.given:
            self._ledger.settle(claim.budgets, grant.reserved_usd, 0.0)
            for bucket, amount in claim.takes:
                self.give(bucket, amount)

    # --- with Redis ---
    @property
    def waiting(self) -> bool:
        """Whether any caller waits for the next exchange."""
        return bool(self._waiting)

    def rows(self) -> list[list[object]]:
        """The claims for the exchange that begins now."""
        waiting = [each for each in self._waiting if not each[1].done()]
        self._sent, self._waiting = waiting[:_CLAIMS], waiting[_CLAIMS:]
        return [claim_row(claim) for claim, _ in self._sent]

    def granted(self, rows: Sequence[Any]) -> None:
        """Redis' answers, in the order of the rows."""
        sent, self._sent = self._sent, []
        now = time.monotonic()
        for (claim, answer), row in zip(sent, rows, strict=True):
            grant = read_grant(claim, row)
            if grant.given:
                self._ledger.granted(claim.budgets, grant.reserved_usd)
            for (bucket, _), level in zip(claim.takes, grant.levels, strict=True):
                self._levels[bucket.name] = (bucket, level.level, now)
            if answer.done():
                self._let_go(claim, grant)
            else:
                answer.set_result(grant)
        if len(self._levels) > self._levels_kept:
            self._levels = {
                name: (bucket, level, at)
                for name, (bucket, level, at) in self._levels.items()
                if level + (now - at) * bucket.refill_per_s < bucket.capacity
            }
            self._levels_kept = max(_LEVELS, 2 * len(self._levels))

    # --- without ---
    def lose(self, replicas: int) -> None:
        """Redis does not answer: decide for all waiting callers here, as one of `replicas`."""
        now = time.monotonic()
        if self.fallback is None:
            self.fallback = LocalFallback(self._ledger, self._levels, replicas, now)
        elif self.rejoins_at is not None:
            self.fallback.owed(now)  # it has been sent, or is on its way
        self.rejoins_at = None
        for claim, answer in [*self._sent, *self._waiting]:
            if not answer.done():
                answer.set_result(self._decide(self.fallback, claim))
        self._sent, self._waiting = [], []

    def _decide(self, fallback: LocalFallback, claim: Claim) -> Grant:
        grant = fallback.take(claim, time.monotonic())
        if grant.given and self.rejoins_at is not None:
            for bucket, amount in claim.takes:
                self.adjustments.add(bucket, -amount)
            self._timer.soon()
        return grant

    def returned(self, settle_s: float) -> None:
        """Redis is back: send it what was taken meanwhile, and from now on each change."""
        if self.fallback is not None and self.rejoins_at is None:
            now = time.monotonic()
            for bucket, amount in self.fallback.owed(now):
                self.adjustments.add(bucket, amount)
            self.rejoins_at = now + settle_s

    @property
    def may_join(self) -> bool:
        """Whether rejoining has lasted long enough."""
        return self.rejoins_at is not None and time.monotonic() >= self.rejoins_at

    def join(self) -> None:
        """All replicas are back: Redis grants again."""
        if self.fallback is not None:
            now = time.monotonic()
            # Else the next interruption would grant the same again.
            self._levels.update(self.fallback.levels(now))
            self.alone_s += now - self.fallback.since
            self.fallback = self.rejoins_at = None


# --- what Redis is sent, and what it answers ---------------------------------------------------------------
def claim_row(claim: Claim) -> list[object]:
    """A claim as `redis_exchange.lua` reads it."""
    return [
        [(each.name, each.capacity, each.refill_per_s, amount) for each, amount in claim.takes],
        [
            (in_redis((each.key, each.period)), min(each.limit_usd, sys.float_info.max))
            for each in claim.budgets
        ],
        claim.reserve_usd,
        claim.least_usd,
    ]


def read_grant(claim: Claim, row: Sequence[Any]) -> Grant:
    """The script's answer to a claim."""
    given, levels, short, reserved_usd, left_usd = row
    left = None if left_usd == "" else float(left_usd)
    return Grant(
        [
            taken(float(level), bucket, amount, given)
            for level, (bucket, amount) in zip(levels, claim.takes, strict=True)
        ],
        claim.budgets[short - 1] if short else None,
        float(reserved_usd),
        float("inf") if left is not None and left > _ENDLESS_USD else left,
    )


class BucketAdjustments:
    """Amounts to add to buckets in Redis, until Redis acknowledges them. A batch keeps its number until then, so that it
    counts once even if an answer is lost."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[Bucket, float]] = {}
        self._batch: dict[str, tuple[Bucket, float]] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._pending or self._batch)

    def add(self, bucket: Bucket, amount: float) -> None:
        """Add an amount to the next batch; negative to take."""
        _, before = self._pending.get(bucket.name, (bucket, 0.0))
        self._pending[bucket.name] = (bucket, before + amount)

    def batch(self) -> tuple[int, list[tuple[str, float, float, float]]]:
        """The number and rows of the next batch: the last one again if it was not acknowledged."""
        if not self._batch and self._pending:
            self._batch, self._pending = self._pending, {}
            self._number += 1
        return self._number, [
            (bucket.name, bucket.capacity, bucket.refill_per_s, amount)
            for bucket, amount in self._batch.values()
        ]

    def acknowledged(self) -> None:
        """Redis has the last batch."""
        self._batch = {}
