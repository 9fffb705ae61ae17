"""The waiting requests: the queue, and the scheduler's state of each request in it.

A request waits because every candidate is full, or because its policy defers it.
"""

from __future__ import annotations

import math
from collections import Counter

from router.core.queue import Queue, Waiting
from router.core.request_state import RequestPhase, RequestState

#: A deferred request is decided again after at least this many seconds.
DEFER_S = 0.05


class WaitingRoom:
    """The waiting requests, in the order of `Queue`. `states` has them by id, in no particular order; `models` counts those
    with the same list of models."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.models: Counter[tuple[str, ...]] = Counter()
        self.states: dict[str, RequestState] = {}
        self._deferred = 0
        # By models: the time of the next decision about deferred requests.
        self._again_at: dict[tuple[str, ...], float] = {}

    def add(self, state: RequestState, waiting: Waiting, now: float, *, deferred: bool) -> None:
        """Put a request into the queue."""
        state.phase = RequestPhase.QUEUED
        state.deferred = deferred
        self._deferred += deferred
        self.states[waiting.id] = state
        self.queue.add(waiting)
        self.models[waiting.models] += 1
        if deferred:  # later arrivals do not postpone it
            self._again_at.setdefault(waiting.models, now + DEFER_S)

    def remove(self, state: RequestState, *, served: bool = False) -> float:
        """Remove a request; returns the work in tokens that was counted for its key. `served`: it got a slot."""
        waiting = self.queue.remove(state.request.id, served=served)
        del self.states[waiting.id]
        state.phase = RequestPhase.RUNNING
        self._deferred -= state.deferred
        state.deferred = False
        self.models[waiting.models] -= 1
        if not self.models[waiting.models]:
            del self.models[waiting.models]
            self._again_at.pop(waiting.models, None)
        return waiting.work_tokens

    def defer_again(self, state: RequestState, now: float) -> None:
        """A deferred request was decided again, and stays deferred."""
        self._again_at[state.models] = now + DEFER_S

    def may_place(self, state: RequestState, now: float) -> bool:
        """Whether a waiting request may be placed now. A deferred one waits for the end of its pause."""
        return not state.deferred or now >= self._again_at[state.models]

    def due(self, models: tuple[str, ...], now: float) -> bool:
        """Whether it is time to decide again about deferred requests for these models."""
        return now >= self._again_at.get(models, math.inf)

    def next_decision_at(self, now: float) -> float:
        """The time of the next decision about deferred requests; infinity for never."""
        return max(min(self._again_at.values()), now + DEFER_S) if self._deferred else math.inf

    def shed(self, now: float) -> list[RequestState]:
        """Mark the requests that can no longer be in time as overdue, and return them."""
        return [self.states[request_id] for request_id in self.queue.shed(now)]

    def in_order(self) -> list[tuple[Waiting, RequestState]]:
        """All waiting requests, in the order in which to try them."""
        return [(waiting, self.states[waiting.id]) for waiting in self.queue.in_order()]

    def gives_way(self, to: Waiting) -> RequestState | None:
        """The request that a full queue drops for a new one (`Queue.gives_way`)."""
        leaving = self.queue.gives_way(to)
        return None if leaving is None else self.states[leaving.id]
