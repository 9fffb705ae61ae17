"""Requests on their way through a simulation, their attempts at engines, and what they come to.

A request has one attempt under way, or two while a hedge runs beside the first; `Flight.answering` is the one
whose first token decided. An attempt is paid by `Attempt.cost_usd`:

- prompt and output once it has given a token, whatever became of it;
- one that was given up, for another attempt or since its time had passed, its prompt in any case: the engine was at work
  on it.
"""

from __future__ import annotations

from math import nan

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.outcomes import Log
from router.core.events import Dispatch
from router.core.outcome import tpot_s
from router.core.types import Outcome


class Attempt:
    """One attempt. `id` names it at its engine, where two of one request have to be told apart."""

    __slots__ = (
        "dispatch",
        "first_at",
        "flight",
        "id",
        "prompt_tokens",
        "running",
        "tokens",
        "wanted_tokens",
    )

    def __init__(self, flight: Flight, dispatch: Dispatch) -> None:
        self.flight = flight
        self.dispatch = dispatch
        self.id = f"{dispatch.request_id}#{dispatch.attempt}"
        self.running = True
        self.first_at: float | None = None
        self.tokens = 0
        self.prompt_tokens = 0  # by the engine's count
        wanted = flight.arrival.output_tokens[dispatch.candidate.model]
        for bound in (dispatch.max_output_tokens, dispatch.paid_tokens):
            if bound is not None and bound < wanted:
                wanted = bound
        self.wanted_tokens = wanted

    @property
    def cut_by_budget(self) -> bool:
        """Whether the answer ended where its money did, and not where it would have."""
        dispatch = self.dispatch
        bound, paid = dispatch.max_output_tokens, dispatch.paid_tokens
        by_money = dispatch.budget_bound or (paid is not None and (bound is None or paid < bound))
        return (
            by_money
            and self.tokens >= self.wanted_tokens
            and self.flight.arrival.output_tokens[dispatch.candidate.model] > self.wanted_tokens
        )

    def cost_usd(self, prompt_tokens: int | None = None, *, given_up: bool = False) -> float:
        """What it costs as it stands. `prompt_tokens` is the engine's count, which it tells at the end."""
        if not self.tokens and not given_up:
            return 0.0
        if prompt_tokens is None:
            prompt_tokens = self.flight.arrival.request.prompt_tokens
        return self.dispatch.candidate.price.cost_usd(prompt_tokens, self.tokens)


class Flight:
    """A request on its way. `running` are its attempts under way by number, `last` the one dispatched last."""

    __slots__ = (
        "answering",
        "arrival",
        "cost_usd",
        "dispatched_at",
        "hedged",
        "index",
        "last",
        "running",
    )

    def __init__(self, index: int, arrival: Arrival) -> None:
        self.index = index
        self.arrival = arrival
        self.cost_usd = 0.0  # of attempts that have ended
        self.dispatched_at = nan  # the first time
        self.hedged = False
        self.running: dict[int, Attempt] = {}
        self.last: Attempt | None = None
        self.answering: Attempt | None = None

    def begin(self, dispatch: Dispatch, now: float) -> Attempt:
        """Another attempt."""
        if self.last is None:
            self.dispatched_at = now
        self.hedged |= dispatch.hedge
        attempt = self.last = self.running[dispatch.attempt] = Attempt(self, dispatch)
        return attempt

    def settle(self, attempt: Attempt, prompt_tokens: int | None = None, *, given_up: bool = False) -> None:
        """An attempt has ended: count what it cost (see `Attempt.cost_usd`)."""
        attempt.running = False
        del self.running[attempt.dispatch.attempt]
        self.cost_usd += attempt.cost_usd(prompt_tokens, given_up=given_up)

    def write(self, log: Log, outcome: Outcome, met: bool | None, now: float) -> None:
        """The row of a request that has ended: of the attempt that answered, else of the last one."""
        arrival, attempt = self.arrival, self.answering or self.last
        request = arrival.request
        if outcome not in _ANSWERED:
            met = None if request.slo is None or outcome is Outcome.REJECTED_INVALID else False
        e2e_s = now - request.arrived_at
        if attempt is None:
            log.add(self.index, request, outcome, met, e2e_s=e2e_s, queue_wait_s=e2e_s)
            return
        assert self.last is not None  # noqa: S101 (there was an attempt)
        dispatch = attempt.dispatch
        first_at = attempt.first_at
        ttft_s = nan if first_at is None else first_at - request.arrived_at
        log.add(
            self.index,
            request,
            outcome,
            met,
            dispatch,
            attempts=self.last.dispatch.attempt,
            hedged=self.hedged,
            output_tokens=attempt.tokens,
            ttft_s=ttft_s,
            tpot_s=None if first_at is None else tpot_s(ttft_s, e2e_s, attempt.tokens),
            e2e_s=e2e_s,
            queue_wait_s=self.dispatched_at - request.arrived_at,
            cost_usd=self.cost_usd,
            quality=arrival.quality.get(dispatch.candidate.model, nan) if outcome in _COMPLETE else nan,
        )


_COMPLETE = (Outcome.OK, Outcome.LATE)
_ANSWERED = (*_COMPLETE, Outcome.BUDGET_EXHAUSTED_MID_DECODE)
