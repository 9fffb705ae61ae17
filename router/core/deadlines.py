"""Deadlines of requests, earliest first.

The entries of a request stay when it ends. They are skipped when they are due, and swept out together once they are the
majority.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Any

#: A heap of this many entries or fewer is not swept.
_LEAST_TO_SWEEP = 64


class DeadlineHeap:
    """Entries of (time, request id, `number`), in this order. The time is on the runner's clock; the caller gives
    `number` a meaning, such as the number of an attempt.

    `known` has the ids of open requests as its keys; its values are not read."""

    __slots__ = ("_entries", "_known")

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._entries: list[tuple[float, str, int]] = []

    def add(self, at: float, request_id: str, number: int = 0) -> None:
        """Add an entry that is due at `at`."""
        entries = self._entries
        heapq.heappush(entries, (at, request_id, number))
        if len(entries) > _LEAST_TO_SWEEP and len(entries) > 4 * len(self._known):
            self._sweep()

    def next_at(self) -> float:
        """When the first entry of an open request is due; infinity if there is none."""
        entries, known = self._entries, self._known
        while entries and entries[0][1] not in known:
            heapq.heappop(entries)
        return entries[0][0] if entries else math.inf

    def due(self, now: float) -> Iterator[tuple[str, int]]:
        """Remove and yield the entries that are due, earliest first, including those that are added meanwhile for `now`
        or earlier."""
        while self._entries and self._entries[0][0] <= now:
            _, request_id, number = heapq.heappop(self._entries)
            yield request_id, number

    def _sweep(self) -> None:
        """Remove the entries of closed requests."""
        self._entries = [entry for entry in self._entries if entry[1] in self._known]
        heapq.heapify(self._entries)
