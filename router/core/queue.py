"""The central queue: who waits for a slot, and in which order.

1. Larger priority first.
2. Then keys in turn, by the work that each was given while others waited too (start-time fair queueing, Goyal,
   Vin and Cheng, SIGCOMM 1996): a key that sends much does not starve one that sends little.
3. Inside a key those who can still make their targets, before those who cannot any more: earliest deadline first
   alone collapses under overload, since it serves who is just about to be late (so the hopeless are moved back
   before anything is sorted by deadline). They are late, not forgotten: one slot in eight is theirs.
4. Then the least slack: the earliest moment at which the work must have begun; ties by arrival.

Pure: no clock; work is in tokens.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

#: After so many served that were in time it is the turn of one that is late.
_LATE_TURN = 7
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
    models: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[bool, float, int, str]:
        """Its place inside its key."""
        return self.late, self.due_at, self.seq, self.id


#: Of one priority: by key, the places of those that wait, sorted.
_Lane = dict[str | None, list[tuple[bool, float, int, str]]]


class Queue:
    """Waiting requests by id, and the order in which they are to be tried."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._lanes: dict[int, _Lane] = {}  # by priority, negated
        self._doomed: list[tuple[float, str]] = []  # a heap; entries of those that left are skipped
        self._given: dict[str | None, float] = {}  # by key: work tokens, as virtual time
        self._virtual = 0.0  # of the key served last
        self._in_time_served = 0  # since one that was late

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        """Ids, in no order that matters."""
        return iter(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Take one in."""
        lane = self._lanes.setdefault(-waiting.priority, {})
        if not any(waiting.key in each for each in self._lanes.values()):
            # It begins now: a quiet hour is no credit for later.
            self._given[waiting.key] = max(self._given.get(waiting.key, 0.0), self._virtual)
        insort(lane.setdefault(waiting.key, []), waiting.place)
        self._waiting[waiting.id] = waiting
        if not waiting.late:
            heapq.heappush(self._doomed, (waiting.doomed_at, waiting.id))

    def remove(self, request_id: str, *, served: bool = False) -> Waiting:
        """Take one out; `served`: it was given a slot, which counts as its key's turn. KeyError if it is not there."""
        waiting = self._waiting.pop(request_id)
        lane = self._lanes[-waiting.priority]
        entries = lane[waiting.key]
        del entries[bisect_left(entries, waiting.place)]
        if not entries:
            del lane[waiting.key]
        if not lane:
            del self._lanes[-waiting.priority]
        if served:
            self._in_time_served = 0 if waiting.late else self._in_time_served + 1
            self._virtual = max(self._virtual, self._given[waiting.key])
            self._given[waiting.key] += waiting.work_tokens
        if len(self._doomed) > 64 and len(self._doomed) > 4 * len(self._waiting):
            self._doomed = [entry for entry in self._doomed if entry[1] in self._waiting]
            heapq.heapify(self._doomed)
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
        late_turn = self._in_time_served >= _LATE_TURN
        for _, lane in sorted(self._lanes.items()):
            given = []
            for key, places in lane.items():
                at = bisect_left(places, (True,)) if late_turn else len(places)
                entries = [places[at], *places[:at], *places[at + 1 :]] if at < len(places) else places
                given.append((self._given[key], entries[0], entries, 0))
            heapq.heapify(given)
            while given:
                virtual, entry, entries, at = heapq.heappop(given)
                waiting = self._waiting[entry[3]]
                yield waiting
                if at + 1 < len(entries):
                    heapq.heappush(given, (virtual + waiting.work_tokens, entries[at + 1], entries, at + 1))

    def used(self, key: str | None, more_tokens: float) -> None:
        """What was given to a key took this many tokens more than it was counted for (or less: that is no credit
        before those whose turn it is)."""
        if key in self._given:
            given = self._given[key]
            self._given[key] = max(given + more_tokens, min(given, self._virtual))

    def before(self, priority: int, due_at: float, key: str | None, models: tuple[str, ...]) -> int:
        """How many that want one of these models would be tried before one of this priority, deadline and key, if all
        took as much work: all of a higher priority, of its own key those that are due earlier, and of each other key
        as many and one."""
        wanted = set(models)
        higher = own = 0
        others: Counter[str | None] = Counter()
        for each in self._waiting.values():
            if each.priority < priority or wanted.isdisjoint(each.models):
                continue
            if each.priority > priority:
                higher += 1
            elif each.key != key:
                others[each.key] += 1
            elif not each.late and each.due_at < due_at:
                own += 1
        return higher + own + sum(min(count, own + 1) for count in others.values())

    def gives_way(self, to: Waiting) -> Waiting | None:
        """Who would leave a full queue for a newcomer: the last one of the key that holds most of the lowest priority,
        if the newcomer's priority is higher, its key holds less, or that last one is late and the newcomer is not.
        None: nobody."""
        if not self._lanes:
            return None
        lowest = max(self._lanes)
        lane = self._lanes[lowest]
        entries = max(lane.values(), key=lambda each: (len(each), each[-1]))
        last = self._waiting[entries[-1][3]]
        if -to.priority != lowest:
            return last if -to.priority < lowest else None
        holds_less = len(lane.get(to.key, ())) + 1 < len(entries)
        return last if holds_less or (last.late and not to.late) else None
