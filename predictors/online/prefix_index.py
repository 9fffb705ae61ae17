"""The prompt prefixes that an instance prefilled recently, so they may still be in its prefix cache.

Each instance has one bounded least-recently-used map of block hashes. It is a guess, because the engine evicts by its
own rule. The learned error of TTFT covers the difference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Recent prefixes by instance, at most `max_blocks` hashes each."""

    def __init__(self, max_blocks: int = 8192) -> None:
        self.max_blocks = max_blocks
        self._seen: dict[str, OrderedDict[int, None]] = {}

    def matched_blocks(self, instance: str, prefix: Sequence[int]) -> int:
        """How many leading hashes of `prefix` the instance has prefilled. Changes nothing."""
        seen = self._seen.get(instance)
        if not seen:
            return 0
        matched = 0
        for block in prefix:
            if block not in seen:
                break
            matched += 1
        return matched

    def add(self, instance: str, prefix: Sequence[int]) -> None:
        """The instance has prefilled a prompt with these leading blocks."""
        seen = self._seen.get(instance)
        if seen is None:
            seen = self._seen[instance] = OrderedDict()
        # Longest first, so that the shortest prefix, which most prompts share, is evicted last.
        for block in reversed(prefix):
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > self.max_blocks:
            seen.popitem(last=False)

    def forget(self, instance: str) -> None:
        """The instance has left the fleet or restarted."""
        self._seen.pop(instance, None)
