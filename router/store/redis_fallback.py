"""How a replica decides while Redis does not answer: by its share of what was left at the last answer.

Each known replica takes an equal part of every bucket (its level, capacity and refill) and of what was left of every
budget. Together they give no more than there is, except for changes between the last answers that each of them got. When
Redis is back, the amounts taken meanwhile are subtracted from its buckets. Money is sent as totals, as always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from router.store.ledger import Ledger, Name
from router.store.state import Bucket, Budget, Claim, Grant, decide

#: By bucket: its level and the time of that.
Levels = Mapping[str, tuple[Bucket, float, float]]


@dataclass(slots=True)
class _Share:
    """A part of a bucket: its level at `at`, and the level if nothing had been taken."""

    whole: Bucket
    part: Bucket
    level: float
    untouched: float
    at: float

    def advance(self, now: float) -> None:
        gone_s, self.at = max(0.0, now - self.at), max(self.at, now)
        refilled = gone_s * self.part.refill_per_s
        self.level = min(self.part.capacity, self.level + refilled)
        self.untouched = min(self.part.capacity, self.untouched + refilled)


class LocalFallback:
    """Decides alone from `now` on (a monotonic clock), as one of `replicas`."""

    def __init__(self, ledger: Ledger, levels: Levels, replicas: int, now: float) -> None:
        self._ledger = ledger
        self._used = ledger.used_at_last_answer()
        self._levels = levels
        self._shares: dict[str, _Share] = {}
        self._replicas = max(1, replicas)
        self.since = now

    def _share(self, bucket: Bucket, now: float) -> _Share:
        share, n = self._shares.get(bucket.name), self._replicas
        part = Bucket(bucket.name, bucket.capacity / n, bucket.refill_per_s / n)
        if share is None:
            _, level, at = self._levels.get(bucket.name, (bucket, bucket.capacity, now))
            share = self._shares[bucket.name] = _Share(bucket, part, level / n, level / n, at)
        share.advance(now)
        if share.whole != bucket:  # the key has another limit since a reload
            share.whole, share.part = bucket, part
            share.advance(now)
        return share

    def take(self, claim: Claim, now: float) -> Grant:
        """Take everything from this replica's share, or nothing."""
        shares = [self._share(bucket, now) for bucket, _ in claim.takes]
        before = [amount for _, amount in claim.before] or [0.0] * len(shares)
        # An amount above the share's capacity passes when the share is full but for what this request took before: it would
        # never fit.
        takes = [
            (share.part, share.level, min(amount, share.part.capacity - taken))
            for share, (_, amount), taken in zip(shares, claim.takes, before, strict=True)
        ]
        grant = decide(claim, takes, self._left_usd)
        if grant.given:
            for share, (_, amount) in zip(shares, claim.takes, strict=True):
                share.level -= amount
            self._ledger.reserve(claim.budgets, grant.reserved_usd)
        return grant

    def _left_usd(self, budget: Budget) -> float:
        name = budget.key, budget.period
        gone_usd, own_then_usd = self._used.get(name, (0.0, 0.0))
        share_usd = (budget.limit_usd - gone_usd) / self._replicas
        if budget.whole:
            share_usd = math.ceil(share_usd)  # else nobody might have one
        return share_usd - (self._ledger.own_usd(name) - own_then_usd)

    def loaded(self, spent_usd: Mapping[Name, float]) -> None:
        """More was spent of budgets by others than was known."""
        for name, usd in spent_usd.items():
            gone_usd, own_usd = self._used.get(name, (0.0, 0.0))
            self._used[name] = gone_usd + usd, own_usd

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        """Return an amount to a bucket."""
        self._share(bucket, now).level += amount

    def owed(self, now: float) -> list[tuple[Bucket, float]]:
        """The amounts to give to the buckets in Redis since the last call: negative for what was taken here and has not
        been refilled."""
        owed = []
        for share in self._shares.values():
            share.advance(now)
            if share.level != share.untouched:
                owed.append((share.whole, share.level - share.untouched))
            share.untouched = share.level
        return owed

    def levels(self, now: float) -> dict[str, tuple[Bucket, float, float]]:
        """The level of each bucket that was used here, as if every other replica had used its share alike."""
        for share in self._shares.values():
            share.advance(now)
        return {
            name: (share.whole, share.level * self._replicas, share.at)
            for name, share in self._shares.items()
        }
