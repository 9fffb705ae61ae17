"""The central queue: which requests wait for a slot, and in which order.

1. Higher priority first.
2. Then fair sharing between keys by the work each received (start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM
   1996): a key that sends many requests does not starve a key that sends few.
3. Within a key, requests that can still meet their targets go before overdue ones. Earliest deadline first alone
   collapses under overload, because it serves requests that are about to be late. Every eighth slot goes to an
   overdue request.
4. Then the earliest deadline for the first token (least slack); ties by arrival.

A request waits because every candidate is full, or because its policy defers it. The queue reads no clock. Work is in
tokens.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from router.core.open_requests import DeadlineHeap
from router.core.request_state import RequestPhase, RequestState

#: After this many requests that were in time, an overdue one is served.
_LATE_TURN = 7
#: Most keys whose received work is remembered; above it only keys with waiting requests are kept.
_KEYS = 4096
#: A deferred request is decided again after at least this many seconds.
DEFER_S = 0.05


@dataclass(slots=True)
class Waiting:
    """One request in the queue. `due_at` is when its first token is due, `doomed_at` the time from which it can no longer
    be in time, and `work_tokens` its expected work."""

    state: RequestState
    id: str
    key: str | None
    priority: int
    due_at: float
    seq: int
    doomed_at: float
    work_tokens: float
    models: tuple[str, ...]
    late: bool = False

    @property
    def place(self) -> tuple[bool, float, int, str]:
        """The sort key among the requests of its key."""
        return self.late, self.due_at, self.seq, self.id


#: The waiting requests of one priority: their sorted places by key.
_Lane = dict[str | None, list[tuple[bool, float, int, str]]]


class Queue:
    """The waiting requests, and the order in which the scheduler tries to place them. `waiting` has them by id, in no
    particular order; `models` counts those with the same list of models."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.models: Counter[tuple[str, ...]] = Counter()
        self._deferred = 0
        # By models: the time of the next decision about deferred requests.
        self._again_at: dict[tuple[str, ...], float] = {}
        self._lanes: dict[int, _Lane] = {}  # by priority, negated
        self._doomed = DeadlineHeap(self.waiting)
        self._given: dict[str | None, float] = {}  # by key: work tokens received, as virtual time
        self._virtual = 0.0  # virtual time of the key served last
        self._in_time_served = 0  # since the last overdue one

    def add(self, waiting: Waiting, again_at: float | None = None) -> None:
        """Add a request. `again_at`: it is deferred until then, or until an earlier one for the same models (None: it is not
        deferred)."""
        state, deferred = waiting.state, again_at is not None
        state.phase, state.deferred = RequestPhase.QUEUED, deferred
        self._deferred += deferred
        self.models[waiting.models] += 1
        if again_at is not None:
            self._again_at.setdefault(waiting.models, again_at)
        self._insert(waiting)

    def remove(self, request_id: str, *, served: bool = False) -> Waiting:
        """Remove and return a request. `served`: it got a slot, so its work counts for its key. Raises KeyError for an
        unknown id."""
        waiting = self._take(request_id)
        state = waiting.state
        state.phase = RequestPhase.RUNNING
        self._deferred -= state.deferred
        state.deferred = False
        self.models[waiting.models] -= 1
        if not self.models[waiting.models]:
            del self.models[waiting.models]
            self._again_at.pop(waiting.models, None)
        if served:
            self._in_time_served = 0 if waiting.late else self._in_time_served + 1
            self._virtual = max(self._virtual, self._given[waiting.key])
            self._given[waiting.key] += waiting.work_tokens
        if len(self._given) > _KEYS:
            here = {each.key for each in self.waiting.values()}
            self._given = {key: given for key, given in self._given.items() if key in here}
        return waiting

    def _insert(self, waiting: Waiting) -> None:
        """Put a request into its lane."""
        lane = self._lanes.setdefault(-waiting.priority, {})
        if not any(waiting.key in each for each in self._lanes.values()):
            # Its virtual time starts now: an idle time earns no credit.
            self._given[waiting.key] = max(self._given.get(waiting.key, 0.0), self._virtual)
        insort(lane.setdefault(waiting.key, []), waiting.place)
        self.waiting[waiting.id] = waiting
        if not waiting.late:
            self._doomed.add(waiting.doomed_at, waiting.id)

    def _take(self, request_id: str) -> Waiting:
        """Take a request out of its lane."""
        waiting = self.waiting.pop(request_id)
        lane = self._lanes[-waiting.priority]
        entries = lane[waiting.key]
        del entries[bisect_left(entries, waiting.place)]
        if not entries:
            del lane[waiting.key]
        if not lane:
            del self._lanes[-waiting.priority]
        return waiting

    def defer_again(self, models: tuple[str, ...], again_at: float) -> None:
        """A deferred request for these models was decided again, and stays deferred."""
        self._again_at[models] = again_at

    def may_place(self, waiting: Waiting, now: float) -> bool:
        """Whether a request may be placed now. A deferred one waits for the end of its pause."""
        return not waiting.state.deferred or now >= self._again_at[waiting.models]

    def due(self, models: tuple[str, ...], now: float) -> bool:
        """Whether it is time to decide again about deferred requests for these models."""
        return now >= self._again_at.get(models, math.inf)

    def next_decision_at(self, now: float) -> float:
        """The time of the next decision about deferred requests; infinity for never."""
        return max(min(self._again_at.values()), now + DEFER_S) if self._deferred else math.inf

    def shed(self, now: float) -> list[Waiting]:
        """Mark the requests that can no longer be in time as overdue, and return them."""
        shed = []
        for request_id, _ in self._doomed.due(now):
            waiting = self.waiting.get(request_id)
            if waiting is not None and not waiting.late and waiting.doomed_at <= now:
                self._take(request_id)
                waiting.late = True
                self._insert(waiting)
                shed.append(waiting)
        return shed

    def in_order(self) -> Iterator[Waiting]:
        """All requests in scheduling order, as if each got a slot. The queue must not change during the iteration."""
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
                waiting = self.waiting[entry[3]]
                yield waiting
                if at + 1 < len(entries):
                    heapq.heappush(given, (virtual + waiting.work_tokens, entries[at + 1], entries, at + 1))

    def used(self, key: str | None, more_tokens: float) -> None:
        """Correct a key's received work by `more_tokens`: actual minus expected work. A negative correction does not put
        the key ahead of keys whose turn it is."""
        if key in self._given:
            given = self._given[key]
            self._given[key] = max(given + more_tokens, min(given, self._virtual))

    def before(self, priority: int, due_at: float, key: str | None, models: tuple[str, ...]) -> int:
        """The number of requests for any of `models` that go before a request of this priority, deadline and key, if all
        need equal work: all of a higher priority, those of its own key that are due earlier, and of each other key at
        most one more than of its own."""
        wanted = set(models)
        higher = own = 0
        others: Counter[str | None] = Counter()
        for each in self.waiting.values():
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
        """The request that a full queue drops for a new one; None if it drops the new one. The candidate is the last
        request of the key with the most requests of the lowest priority. It is dropped if the new request has a higher
        priority, or its key has fewer requests, or the candidate is overdue and the new request is not."""
        if not self._lanes:
            return None
        lowest = max(self._lanes)
        lane = self._lanes[lowest]
        entries = max(lane.values(), key=lambda each: (len(each), each[-1]))
        last = self.waiting[entries[-1][3]]
        if -to.priority != lowest:
            return last if -to.priority < lowest else None
        holds_less = len(lane.get(to.key, ())) + 1 < len(entries)
        return last if holds_less or (last.late and not to.late) else None
