"""Times at which requests are due, soonest first.

Nothing is taken out when a request ends: entries of those that are over are skipped when their time comes, and swept
out together when they are most of what is there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Any

#: Fewer entries are not worth a sweep.
_LEAST_TO_SWEEP = 64


class DeadlineHeap:
    """By time (on the runner's clock), then request, then what of the request is meant (`number`).

    `known` maps the ids of requests that are not over to anything."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[float, str, int]] = []

    def add(self, at: float, request_id: str, number: int = 0) -> None:
        """Have a request come up at a time."""
        heapq.heappush(self._entries, (at, request_id, number))

    def next_at(self, known: Mapping[str, Any]) -> float:
        """When the first is due that is not over; infinity for never."""
        entries = self._entries
        while entries and entries[0][1] not in known:
            heapq.heappop(entries)
        return entries[0][0] if entries else math.inf

    def due(self, now: float) -> Iterator[tuple[str, int]]:
        """Take out what is due, soonest first, also what is added for `now` or before while this goes on."""
        while self._entries and self._entries[0][0] <= now:
            _, request_id, number = heapq.heappop(self._entries)
            yield request_id, number

    def sweep(self, known: Mapping[str, Any]) -> None:
        """Let go of requests that are over, if they are most."""
        entries = self._entries
        if len(entries) > _LEAST_TO_SWEEP and len(entries) > 4 * len(known):
            self._entries = [entry for entry in entries if entry[1] in known]
            heapq.heapify(self._entries)
