"""Writes claims and adjustments of buckets for Redis, and reads its grants."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from router.store.redis_ledger import in_redis
from router.store.state import Bucket, Claim, Grant, taken

#: JSON has no infinity: a budget without a limit gets one that nobody reaches.
_ENDLESS_USD = 1e300


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
