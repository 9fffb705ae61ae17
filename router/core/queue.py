"""The central queue: who waits for a slot, and in which order.

1. Larger priority first.
2. Then those who can still make their targets, before those who cannot any more: earliest deadline first
   alone collapses under overload, since it serves who is just about to be late (so the hopeless are moved back
   before anything is sorted by deadline). They are late, not forgotten: they go when nobody else wants the slot.
3. Then keys in turn, by the work that each was given while others waited too (start-time fair queueing, Goyal,
   Vin and Cheng, SIGCOMM 1996): a key that sends much does not starve one that sends little.
4. Inside a key the least slack: the earliest moment at which the first token is due; ties by arrival.

Pure: no clock; work is in tokens.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

#: Keys whose share of work is remembered beyond those that wait.
_KEYS = 4096


@dataclass(slots=True)
class Waiting:
    """One request in the queue. `due_at` is when its first token is due, `doomed_at` from when on it cannot be in
    time any more, `work_tokens` what it will take."""

    id: str
    key: str | None
    priority: int
    due_at: float
    seq: int
    doomed_at: float
    work_tokens: float
    late: bool = False

    @property
    def lane(self) -> tuple[int, bool]:
        return -self.priority, self.late


#: Of one lane: by key, the (due_at, seq, id) of those that wait, sorted.
_Lane = dict[str | None, list[tuple[float, int, str]]]


class Queue:
    """Waiting requests by id, and the order in which they are to be tried."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._lanes: dict[tuple[int, bool], _Lane] = {}
        self._doomed: list[tuple[float, str]] = []  # a heap; entries of those that left are skipped
        self._given: dict[str | None, float] = {}  # by key: work tokens, as virtual time
        self._virtual = 0.0  # of the key served last

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        """Ids, in no order that matters."""
        return iter(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Take one in."""
        lane = self._lanes.setdefault(waiting.lane, {})
        if not any(waiting.key in each for each in self._lanes.values()):
            # It begins now: a quiet hour is no credit for later.
            self._given[waiting.key] = max(self._given.get(waiting.key, 0.0), self._virtual)
        insort(lane.setdefault(waiting.key, []), (waiting.due_at, waiting.seq, waiting.id))
        self._waiting[waiting.id] = waiting
        if not waiting.late:
            heapq.heappush(self._doomed, (waiting.doomed_at, waiting.id))

    def remove(self, request_id: str, *, served: bool = False) -> Waiting:
        """Take one out; `served`: it was given a slot, which counts as its key's turn. KeyError if it is not there."""
        waiting = self._waiting.pop(request_id)
        lane = self._lanes[waiting.lane]
        entries = lane[waiting.key]
        del entries[bisect_left(entries, (waiting.due_at, waiting.seq, waiting.id))]
        if not entries:
            del lane[waiting.key]
        if not lane:
            del self._lanes[waiting.lane]
        if served:
            self._virtual = max(self._virtual, self._given[waiting.key])
            self._given[waiting.key] += waiting.work_tokens
        if len(self._given) > _KEYS:
            here = {each.key for each in self._waiting.values()}
            self._given = {key: given for key, given in self._given.items() if key in here}
        return waiting

    def shed(self, now: float) -> list[str]:
        """Move back those that cannot be in time any more; their ids."""
        shed = []
        while self._doomed and self._doomed[0][0] <= now:
            doomed_at, request_id = heapq.heappop(self._doomed)
            waiting = self._waiting.get(request_id)
            if waiting is not None and not waiting.late and waiting.doomed_at == doomed_at:
                self.remove(request_id)
                waiting.late = True
                self.add(waiting)
                shed.append(request_id)
        return shed

    def in_order(self) -> Iterator[Waiting]:
        """All of them, first those to be tried first, as if each were given a slot. Do not change the queue
        while this is read."""
        for _, lane in sorted(self._lanes.items()):
            given = [(self._given[key], entries[0], key, 0) for key, entries in lane.items()]
            heapq.heapify(given)
            while given:
                virtual, entry, key, at = heapq.heappop(given)
                waiting = self._waiting[entry[2]]
                yield waiting
                entries = lane[key]
                if at + 1 < len(entries):
                    heapq.heappush(given, (virtual + waiting.work_tokens, entries[at + 1], key, at + 1))

    def before(self, priority: int, due_at: float) -> int:
        """How many would be tried before one of this priority and deadline, keys not counted: those still in time."""
        return sum(
            bisect_left(entries, (due_at,)) if -negated == priority else len(entries)
            for (negated, late), lane in self._lanes.items()
            if not late and -negated >= priority
            for entries in lane.values()
        )

    def last(self) -> Waiting | None:
        """Who would be tried last of the last lane; None when empty."""
        if not self._lanes:
            return None
        lane = self._lanes[max(self._lanes)]
        entry = max(entries[-1] for entries in lane.values())
        return self._waiting[entry[2]]
