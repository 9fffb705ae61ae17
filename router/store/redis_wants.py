"""How wants and what goes back to buckets are told to Redis, and how its grants are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from router.store.redis_books import in_redis
from router.store.state import Bucket, Grant, Want, taken

#: JSON knows no infinity: a budget without a limit has one that nobody reaches.
_ENDLESS_USD = 1e300


def want_row(want: Want) -> list[object]:
    """A want as `redis_exchange.lua` reads it."""
    return [
        [(each.name, each.capacity, each.refill_per_s, amount) for each, amount in want.takes],
        [
            (in_redis((each.key, each.period)), min(each.limit_usd, sys.float_info.max))
            for each in want.budgets
        ],
        want.reserve_usd,
        want.least_usd,
    ]


def read_grant(want: Want, row: Sequence[Any]) -> Grant:
    """The script's answer to a want."""
    given, levels, short, reserved_usd, left_usd = row
    left = None if left_usd == "" else float(left_usd)
    return Grant(
        [
            taken(float(level), bucket, amount, given)
            for level, (bucket, amount) in zip(levels, want.takes, strict=True)
        ],
        want.budgets[short - 1] if short else None,
        float(reserved_usd),
        float("inf") if left is not None and left > _ENDLESS_USD else left,
    )


class Gives:
    """Amounts on their way to buckets. A batch goes out under its number until it is acknowledged, so that one whose
    answer was lost is not counted twice."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[Bucket, float]] = {}
        self._batch: dict[str, tuple[Bucket, float]] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._pending or self._batch)

    def add(self, bucket: Bucket, amount: float) -> None:
        """To be given with the next batch; negative: to be taken."""
        _, before = self._pending.get(bucket.name, (bucket, 0.0))
        self._pending[bucket.name] = (bucket, before + amount)

    def batch(self) -> tuple[int, list[tuple[str, float, float, float]]]:
        """The number and the rows of what goes out now: the last batch again, if it was not acknowledged."""
        if not self._batch and self._pending:
            self._batch, self._pending = self._pending, {}
            self._number += 1
        return self._number, [
            (bucket.name, bucket.capacity, bucket.refill_per_s, amount)
            for bucket, amount in self._batch.values()
        ]

    def acknowledged(self) -> None:
        """The last batch has arrived."""
        self._batch = {}
