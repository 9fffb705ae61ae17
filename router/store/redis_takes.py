"""Takes: sent to Redis for a grant, or decided here while Redis does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from router.store.redis_books import Books, Name
from router.store.redis_fallback import LocalFallback
from router.store.redis_pace import Pace
from router.store.redis_wants import Gives, read_grant, want_row
from router.store.state import Bucket, Grant, Want

#: Most takes in one exchange, because Redis does nothing else meanwhile.
_WANTS = 200
#: Above this many remembered levels, those of full buckets are forgotten.
_LEVELS = 1000


class Takes:
    """Decides takes, in one of three states:

    shared    `alone` is None: Redis grants.
    alone     `alone` is set, `settled_at` is None: this replica grants at once from its share (`redis_fallback`).
    settling  both are set: Redis is back and has this replica's changes, but this replica still grants from its share,
              until every other replica has had time to reconnect and send its changes too.
    """

    def __init__(self, books: Books, pace: Pace, replicas: int = 1) -> None:
        """Start in the state `alone`, as one of `replicas` replicas."""
        self._books = books
        self._pace = pace
        self.gives = Gives()
        self.alone: LocalFallback | None = LocalFallback(books, {}, replicas, time.monotonic())
        self.settled_at: float | None = None
        self.alone_s = 0.0  # time in local fallback, up to its last end
        self._waiting: list[tuple[Want, asyncio.Future[Grant]]] = []
        self._asked: list[tuple[Want, asyncio.Future[Grant]]] = []
        self._levels: dict[str, tuple[Bucket, float, float]] = {}
        self._levels_kept = _LEVELS

    async def take(self, want: Want) -> Grant:
        """Grant the whole want, or nothing."""
        if self.alone is not None:
            return self._decide(self.alone, want)
        answer: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiting.append((want, answer))
        self._pace.at_once()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # the answer came at the same moment
                self._let_go(want, answer.result())
            raise

    def give(self, bucket: Bucket, amount: float) -> None:
        """Return an amount that was taken but not used. In local fallback it goes to the share, and later to Redis."""
        if self.alone is not None:
            self.alone.give(bucket, amount, time.monotonic())
        if self.alone is None or self.settled_at is not None:
            self.gives.add(bucket, amount)
            self._pace.soon()

    def loaded(self, spent_usd: Mapping[Name, float]) -> None:
        """Add spending that was not known before."""
        if self.alone is not None:
            self.alone.loaded(spent_usd)

    def _let_go(self, want: Want, grant: Grant) -> None:
        """Undo a grant whose caller was cancelled."""
        if grant.given:
            for budget in want.budgets:
                self._books.settle((budget.key, budget.period), grant.reserved_usd, 0.0)
            for bucket, amount in want.takes:
                self.give(bucket, amount)

    # --- with Redis ---
    @property
    def waiting(self) -> bool:
        """True if a take waits for the next exchange."""
        return bool(self._waiting)

    def rows(self) -> list[list[object]]:
        """The wants for the exchange that begins now."""
        waiting = [each for each in self._waiting if not each[1].done()]
        self._asked, self._waiting = waiting[:_WANTS], waiting[_WANTS:]
        return [want_row(want) for want, _ in self._asked]

    def granted(self, rows: Sequence[Any]) -> None:
        """Deliver the answers, which have the order of the rows."""
        sent, self._asked = self._asked, []
        now = time.monotonic()
        for (want, answer), row in zip(sent, rows, strict=True):
            grant = read_grant(want, row)
            if grant.given:
                self._books.granted(want.budgets, grant.reserved_usd)
            for (bucket, _), level in zip(want.takes, grant.levels, strict=True):
                self._levels[bucket.name] = (bucket, level.level, now)
            if answer.done():
                self._let_go(want, grant)
            else:
                answer.set_result(grant)
        if len(self._levels) > self._levels_kept:
            self._levels = {
                name: (bucket, level, at)
                for name, (bucket, level, at) in self._levels.items()
                if level + (now - at) * bucket.refill_per_s < bucket.capacity
            }
            self._levels_kept = max(_LEVELS, 2 * len(self._levels))

    # --- without Redis ---
    def cut(self, replicas: int) -> None:
        """Redis does not answer: decide the waiting takes here, as one of `replicas` replicas."""
        now = time.monotonic()
        if self.alone is None:
            self.alone = LocalFallback(self._books, self._levels, replicas, now)
        elif self.settled_at is not None:
            self.alone.owed(now)  # these changes are sent, or will be
        self.settled_at = None
        for want, answer in [*self._asked, *self._waiting]:
            if not answer.done():
                answer.set_result(self._decide(self.alone, want))
        self._asked, self._waiting = [], []

    def _decide(self, alone: LocalFallback, want: Want) -> Grant:
        grant = alone.take(want, time.monotonic())
        if grant.given and self.settled_at is not None:
            for bucket, amount in want.takes:
                self.gives.add(bucket, -amount)
            self._pace.soon()
        return grant

    def returned(self, settle_s: float) -> None:
        """Redis is back. Send it the amounts taken meanwhile, and from now on each take."""
        if self.alone is not None and self.settled_at is None:
            now = time.monotonic()
            for bucket, amount in self.alone.owed(now):
                self.gives.add(bucket, amount)
            self.settled_at = now + settle_s

    @property
    def settled(self) -> bool:
        """True if the settling time is over."""
        return self.settled_at is not None and time.monotonic() >= self.settled_at

    def join(self) -> None:
        """All replicas are back: Redis grants again."""
        if self.alone is not None:
            self.alone_s += time.monotonic() - self.alone.since
            self.alone = self.settled_at = None
