"""Paged KV memory: a count of blocks, some of them known by the hash of the prompt prefix they hold.

A block is *held* while a sequence uses it. A hashed block that nobody holds stays in the cache and is free
all the same: it is evicted, least recently used first, when plain free blocks have run out (vLLM's automatic
prefix caching). Blocks without a hash are only counted, never listed, so that growth costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class KvBlocks:
    """`total` blocks. `free` counts evictable cached blocks too."""

    __slots__ = ("_holders", "_idle", "_plain", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._plain = total  # free and not in the cache
        self._holders: dict[int, int] = {}  # by hash: how many sequences hold the block
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, held by nobody, oldest first

    @property
    def usage(self) -> float:
        """Share of blocks held by sequences, 0..1."""
        return 1.0 - self.free / self.total

    def match(self, prefix: tuple[int, ...], most: int) -> int:
        """How many leading blocks of `prefix` are in the cache, `most` at the most."""
        holders, idle = self._holders, self._idle
        found = 0
        for block in prefix[:most]:
            if block not in holders and block not in idle:
                break
            found += 1
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks count as free now."""
        return sum(1 for block in blocks if block in self._idle)

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
                self._holders[block] = 1
                self.free -= 1
            else:
                self._holders[block] += 1

    def take(self, count: int) -> None:
        """Hold `count` blocks without a hash; evicts cached ones if it must. The caller has checked `free`."""
        self.free -= count
        self._plain -= count
        while self._plain < 0:
            self._idle.popitem(last=False)
            self._plain += 1

    def give(self, count: int) -> None:
        """Let go of `count` blocks without a hash."""
        self.free += count
        self._plain += count

    def name(self, block: int) -> bool:
        """Enter a held block without a hash into the cache under `block`; False if that is there already,
        and the holder's copy stays without a hash."""
        if block in self._holders or block in self._idle:
            return False
        self._holders[block] = 1
        return True

    def drop(self, blocks: list[int]) -> None:
        """Let go of hashed blocks, given shortest prefix first. The longest is evicted first: a prefix
        without its head is of no use."""
        for block in reversed(blocks):
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]
                self._idle[block] = None
                self.free += 1
