"""State that all replicas of the router share: today the token buckets of rate limits.

`State` is what the gateway sees; `MemoryState` serves one process. `now` is an argument everywhere (seconds,
any clock that does not go back).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# An amount that has flowed back is not refused for the last bit of a floating-point sum.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: holds at most `capacity`, refills at `refill_per_s`. Full when first seen."""

    name: str
    capacity: float
    refill_per_s: float


@dataclass(frozen=True, slots=True)
class Level:
    """What is in a bucket now, and how long it needs to be full, or to hold the amount asked for
    (`wait_s`, zero when it was there)."""

    level: float
    full_after_s: float
    wait_s: float


class State(Protocol):
    """Shared state. Asynchronous, since it may live on another machine."""

    async def take(self, wants: Sequence[tuple[Bucket, float]], now: float) -> Sequence[Level]:
        """Take an amount from each bucket, or from none if any holds too little (its `wait_s` > 0)."""
        ...

    def give(self, bucket: Bucket, amount: float) -> None:
        """Put back what was taken too much; a negative amount takes more, below zero if need be. Nothing is
        answered, so that a state elsewhere may send it on later."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class MemoryState:
    """Buckets of one process. Their number is that of the configured keys, so nothing is ever evicted."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}  # level, when

    def _level(self, bucket: Bucket, now: float) -> float:
        known = self._levels.get(bucket.name)
        if known is None:
            return bucket.capacity
        level, at = known
        return min(bucket.capacity, level + max(0.0, now - at) * bucket.refill_per_s)

    async def take(self, wants: Sequence[tuple[Bucket, float]], now: float) -> Sequence[Level]:
        before = [self._level(bucket, now) for bucket, _ in wants]
        granted = all(level + _SLACK >= amount for level, (_, amount) in zip(before, wants, strict=True))
        levels = []
        for level, (bucket, amount) in zip(before, wants, strict=True):
            wait_s = max(0.0, amount - level - _SLACK) / bucket.refill_per_s
            if granted:
                wait_s = 0.0
                self._levels[bucket.name] = (level - amount, now)
            left = level - amount if granted else level
            levels.append(Level(left, (bucket.capacity - left) / bucket.refill_per_s, wait_s))
        return levels

    def give(self, bucket: Bucket, amount: float) -> None:
        known = self._levels.get(bucket.name)
        if known is not None:  # one that nothing was taken from is full
            self._levels[bucket.name] = (known[0] + amount, known[1])

    async def aclose(self) -> None:
        self._levels.clear()
