"""Paged KV memory: a count of blocks, some of them known by the hash of the prompt prefix they hold.

A block is *held* while a sequence uses it. A hashed block that nobody holds stays in the cache and is free
all the same: it is evicted, least recently used first, when plain free blocks have run out (vLLM's automatic
prefix caching). Blocks without a hash are only counted, never listed, so that growth costs nothing.

One hash stands for a *unit* of one block or more, which is entered, found, held and evicted as a whole: who
knows prefixes by 512 tokens pays for one entry where blocks of 16 tokens would be 32. What is done to many
units at once is done by the dictionaries' own loops where that is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile


class KvBlocks:
    """`total` blocks. `free` counts evictable cached blocks too. `unit` blocks make one unit; it is set before
    the first `name`."""

    __slots__ = ("_holders", "_idle", "_plain", "free", "total", "unit")

    def __init__(self, total: int, unit: int = 1) -> None:
        self.total = total
        self.free = total
        self.unit = unit
        self._plain = total  # blocks that are free and not in the cache
        self._holders: dict[int, int] = {}  # every cached unit by hash: how many sequences hold it
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, held by nobody, oldest first

    @property
    def usage(self) -> float:
        """Share of blocks held by sequences, 0..1."""
        return 1.0 - self.free / self.total

    def match(self, prefix: Sequence[int], most: int) -> list[int]:
        """The leading units of `prefix` that are in the cache, `most` at the most."""
        return list(takewhile(self._holders.__contains__, islice(prefix, most)))

    def idle_among(self, units: Iterable[int]) -> int:
        """How many blocks of these cached units count as free now."""
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
        """Hold `count` blocks without a hash; evicts cached units if it must. The caller has checked `free`."""
        self.free -= count
        self._plain -= count
        if self._plain < 0:
            evicted = -(self._plain // self.unit)
            self._plain += evicted * self.unit
            holders, oldest = self._holders, self._idle.popitem
            for _ in range(evicted):
                del holders[oldest(False)[0]]

    def give(self, count: int) -> None:
        """Let go of `count` blocks without a hash."""
        self.free += count
        self._plain += count

    def name(self, units: Sequence[int]) -> Iterable[int]:
        """Enter held blocks without a hash into the cache under the hashes `units`. Returns those that were
        not there before: of the others the holder's copy stays without a hash."""
        holders = self._holders
        fresh = dict.fromkeys(units, 1)
        if not holders.keys().isdisjoint(fresh):
            fresh = {one: 1 for one in fresh if one not in holders}
        holders.update(fresh)
        return fresh

    def drop(self, units: Sequence[int]) -> None:
        """Let go of hashed units, given shortest prefix first. The longest is evicted first: a prefix
        without its head is of no use."""
        holders, idle = self._holders, self._idle
        cached = len(idle)
        for one in reversed(units):
            holders[one] = count = holders[one] - 1
            if not count:
                idle[one] = None
        self.free += (len(idle) - cached) * self.unit
