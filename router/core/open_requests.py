"""The requests that have not ended, and the times at which the scheduler must look at them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from router.core.deadlines import DeadlineHeap
from router.core.request_state import AttemptState, RequestPhase, RequestState


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
