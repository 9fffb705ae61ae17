# cython: language_level=3, annotation_typing=False
"""Paged KV memory: counts blocks, and knows some of them by the hash of the prompt prefix in them.

A block is *held* while a sequence uses it. A hashed block that no sequence holds stays in the cache and counts as free:
when other free blocks have run out, it is evicted, least recently used first (vLLM's automatic prefix caching). Blocks
without a hash are only counted, not listed, so growth costs nothing. Those of a preempted sequence's prompt stay in the
cache under the sequence's id, because vLLM hashes every full block; there the end is evicted first.

One hash stands for a *unit* of one or more blocks, which is added, found, held and evicted together. With units of 512
tokens there is one entry instead of 32 for blocks of 16 tokens. Operations on many units use the dictionaries' own
loops where that is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Any


class KvBlocks:
    """`total` blocks. `free` includes cached blocks that can be evicted. A unit has `unit` blocks; this is set before
    the first `name`."""

    __slots__ = ("_holders", "_idle", "_plain", "free", "total", "unit")

    def __init__(self, total: int, unit: int = 1) -> None:
        self.total = total
        self.free = total
        self.unit = unit
        self._plain = total  # blocks that are free and not in the cache
        self._holders: dict[int, int] = {}  # every cached unit by hash: the number of sequences that hold it
        # Cached units that nobody holds, oldest first; for a preempted sequence the number of its blocks.
        self._idle: OrderedDict[Any, int | None] = OrderedDict()

    def copy(self) -> KvBlocks:
        """The same state."""
        copied = KvBlocks(self.total, self.unit)
        copied.free, copied._plain = self.free, self._plain
        copied._holders, copied._idle = self._holders.copy(), self._idle.copy()
        return copied

    @property
    def usage(self) -> float:
        """Share of blocks held by sequences, 0..1."""
        return 1.0 - self.free / self.total

    def match(self, prefix: Sequence[int], most: int) -> list[int]:
        """The leading units of `prefix` that are in the cache, at most `most`."""
        return list(takewhile(self._holders.__contains__, islice(prefix, most)))

    def idle_among(self, units: Iterable[int]) -> int:
        """The number of blocks of these cached units that count as free now."""
        return list(map(self._holders.get, units)).count(0) * self.unit

    def hold(self, units: Sequence[int]) -> None:
        """Hold cached units."""
        holders, idle = self._holders, self._idle
        for one in units:
            count = holders[one]
            if not count:
                del idle[one]
                self.free -= self.unit
            holders[one] = count + 1

    def take(self, count: int) -> None:
        """Hold `count` blocks without a hash; evicts cached units if necessary. The caller has checked `free`."""
        self.free -= count
        self._plain -= count
        while self._plain < 0:
            one, blocks = self._idle.popitem(False)
            if blocks is None:
                del self._holders[one]
                self._plain += self.unit
            elif blocks > -self._plain:
                self._idle[one] = blocks + self._plain
                self._idle.move_to_end(one, False)
                self._plain = 0
            else:
                self._plain += blocks

    def give(self, count: int) -> None:
        """Free `count` blocks without a hash."""
        self.free += count
        self._plain += count

    def park(self, seq_id: str, count: int) -> None:
        """Keep `count` free blocks without a hash in the cache for a preempted sequence."""
        self._plain -= count
        self._idle[seq_id] = count

    def parked(self, seq_id: str) -> int:
        """The number of blocks that a preempted sequence would find."""
        return self._idle.get(seq_id) or 0

    def unpark(self, seq_id: str) -> int:
        """Hold what `parked` tells; returns it."""
        count = self._idle.pop(seq_id, None) or 0
        self.free -= count
        return count

    def name(self, units: Sequence[int]) -> Iterable[int]:
        """Add held blocks without a hash to the cache under the hashes `units`. Returns the new ones. Of the others the
        cache has a copy already, and the holder's blocks stay without a hash."""
        holders = self._holders
        fresh = dict.fromkeys(units, 1)
        if not holders.keys().isdisjoint(fresh):
            fresh = {one: 1 for one in fresh if one not in holders}
        holders.update(fresh)
        return fresh

    def drop(self, units: Sequence[int]) -> None:
        """Free hashed units, given with the shortest prefix first. The longest is evicted first, because a prefix
        without its beginning is useless."""
        holders, idle = self._holders, self._idle
        cached = len(idle)
        for one in reversed(units):
            holders[one] = count = holders[one] - 1
            if not count:
                idle[one] = None
        self.free += (len(idle) - cached) * self.unit
