"""The requests that have not ended, and the times at which the scheduler must look at them.

The deadlines of a request stay in their heap when it ends. They are skipped when they are due, and swept out together once
they are the majority.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from router.core.request_state import AttemptState, RequestPhase, RequestState

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


class OpenRequests:
    """`states` has all requests by id. `awaiting` has those without a first token, in the order of `expires_at`, their time
    limit. `hedges` has the time at which each attempt becomes late. `first_tokens_at` is when the next first token of an
    attempt without a stream is expected (infinity: never)."""

    def __init__(self) -> None:
        self.states: dict[str, RequestState] = {}
        self.awaiting: OrderedDict[str, RequestState] = OrderedDict()
        self.hedges = DeadlineHeap(self.awaiting)
        self.first_tokens_at = math.inf
        #: The latest time limit of all requests that were in `awaiting` together.
        self._awaiting_until = -math.inf
        self._deadlines = DeadlineHeap(self.states)  # hard SLOs, and time limits out of order
        self._first_tokens = DeadlineHeap(self.states)

    def add(self, state: RequestState) -> None:
        """A request waits for its first token: a new one, or one that is placed again."""
        request = state.request
        request_id, expires_at = request.id, request.expires_at
        if request_id not in self.states:
            self.states[request_id] = state
            if request.hard and (due := state.hard_deadline()) is not None:
                self._deadlines.add(due, request_id)
        elif request_id in self.awaiting:
            return  # deferred again: its time limit is known
        if not self.awaiting:
            self._awaiting_until = -math.inf
        if expires_at < self._awaiting_until:  # not in order: a retry, or another limit since a reload
            self._deadlines.add(expires_at, request_id)
        elif expires_at > self._awaiting_until:
            self._awaiting_until = expires_at
        self.awaiting[request_id] = state

    def find(
        self, request_id: str, attempt: int
    ) -> tuple[RequestState, AttemptState | None] | tuple[None, None]:
        """A request, and its attempt of this number if it is under way."""
        state = self.states.get(request_id)
        if state is None:
            return None, None
        for each in state.under_way:
            if each.number == attempt:
                return state, each
        return state, None

    def next_at(self) -> float:
        """When a time limit, a hard SLO or a hedge is due next; infinity for never."""
        deadline_at, hedge_at = self._deadlines.next_at(), self.hedges.next_at()
        at = hedge_at if hedge_at < deadline_at else deadline_at
        for oldest in self.awaiting:
            expires_at = self.awaiting[oldest].request.expires_at
            return expires_at if expires_at < at else at
        return at

    def overdue(self, now: float) -> Iterator[RequestState]:
        """The requests whose time has passed. The caller ends each one before it takes the next."""
        for request_id, _ in self._deadlines.due(now):
            state = self.states.get(request_id)
            if state is None or state.phase is RequestPhase.ENDING:
                continue
            due = state.hard_deadline()
            if request_id in self.awaiting:
                due = min(state.request.expires_at, math.inf if due is None else due)
            if due is not None:
                if due <= now:
                    yield state
                else:
                    self._deadlines.add(due, request_id)
        while self.awaiting:
            state = self.awaiting[next(iter(self.awaiting))]
            if state.request.expires_at > now:
                break
            yield state

    def expect_first_token(self, request_id: str, attempt: int, at: float) -> None:
        """This attempt is not streamed, and its first token is expected at `at`."""
        self._first_tokens.add(at, request_id, attempt)
        self.first_tokens_at = min(self.first_tokens_at, at)

    def expected_first_tokens(self, now: float) -> Iterator[AttemptState]:
        """The attempts whose first token is expected until now."""
        for request_id, number in self._first_tokens.due(now):
            attempt = self.find(request_id, number)[1]
            if attempt is not None:
                yield attempt
        self.first_tokens_at = self._first_tokens.next_at()
