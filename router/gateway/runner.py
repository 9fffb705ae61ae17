"""Runs the scheduler in the event loop: feeds it events, hands its instructions to the requests that they concern, and
owns its one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic

from backends.writes import EndOfTurn
from router.background import failed, surviving
from router.core.events import (
    Arrived,
    Cancel,
    Ended,
    Event,
    Finish,
    GivenUp,
    Instruction,
    Left,
    Tick,
)
from router.core.money.reservation import Funding
from router.core.scheduler import Scheduler
from router.core.types import EndedHow, Request

#: After a failed `Tick` the next one comes after this time.
_RETRY_S = 0.5


#: Carries out the instructions for one request, and waits for nothing. It reports the end of an attempt that it cancels before
#: it returns. More money (`Reserve`) and the result of a check (`Check`) are reported later.
CarryOut = Callable[[Instruction], None]


class Runner:
    """Runs one scheduler. `clock` gives seconds and never goes back (a loop's own time is cached, on uvloop in whole
    milliseconds: too coarse for latencies)."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self.end_of_turn = EndOfTurn()
        #: Called with the policy and the seconds that a decision took.
        self.on_decision: Callable[[str, float], None] | None = None
        #: Called when an attempt may have begun or ended, so that other replicas learn of it soon.
        self.on_work: Callable[[], None] | None = None
        #: Called with each event, its time and its instructions, before they are carried out.
        self.on_event: Callable[[Event, float, list[Instruction]], None] | None = None
        self._carry_outs: dict[str, CarryOut] = {}  # by request
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf
        scheduler.on_fault = partial(failed, "scheduler")

    def submit(self, request: Request, funding: Funding | None, carry_out: CarryOut) -> None:
        """Submit a request. `carry_out` gets its instructions; the last one, `Finish`, always comes. After an exception the
        caller gives it up."""
        self._carry_outs[request.id] = carry_out
        self.apply(Arrived(request, funding))

    def apply(self, event: Event, now: float | None = None) -> None:
        """Feed one event (at `now`, else at this moment) and carry out its instructions. After them, when nobody waits any
        more, the scheduler catches up and the timer is set."""
        scheduler, clock, kind = self.scheduler, self.clock, type(event)
        if now is None:
            now = clock()
        instructions = scheduler.respond(event, now)
        if self.on_event is not None:
            scheduler.catch_up()
            self.on_event(event, now, instructions)
        for instruction in instructions:
            self._carry_out(instruction)
        if self.on_decision is not None and type(event) is Arrived:
            self.on_decision(event.request.policy, clock() - now)
        scheduler.catch_up()
        if self.on_work is not None and (instructions or kind is Ended or kind is Left):
            self.on_work()
        if (
            # The end of a request alone makes no deadline earlier.
            (instructions and (type(instructions[0]) is not Finish or instructions[1:]))
            or scheduler.queue_depth
            # Of two attempts one failed, and the request waits anew.
            or (type(event) is Ended and event.how is EndedHow.FAILED)
            or kind is Tick  # it has used up the timer, and may follow other settings
        ):
            self._arm()

    def forget(self, request_id: str) -> None:
        """The scheduler has failed on a request: it gives the request up, and no instruction is carried out."""
        self._carry_outs.pop(request_id, None)
        with surviving("relay"):
            self.apply(GivenUp(request_id, "internal_error"))

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _carry_out(self, instruction: Instruction) -> None:
        carry_out = self._carry_outs.get(instruction.request_id)
        if carry_out is None:
            if type(instruction) is Cancel:  # of a request that was forgotten
                self._give_up(instruction)
            return
        if type(instruction) is Finish:
            del self._carry_outs[instruction.request_id]
        try:
            carry_out(instruction)
        except Exception as error:  # noqa: BLE001 (one request's fault must not reach the others' instructions)
            failed("relay", error)
            self._give_up(instruction)

    def _give_up(self, instruction: Instruction) -> None:
        """An instruction could not be carried out: give the request up, and report a cancelled attempt as ended."""
        if type(instruction) is Cancel:
            self.apply(Ended(instruction.request_id, instruction.attempt, EndedHow.CANCELLED, sent=False))
        elif type(instruction) is not Finish:
            self.apply(GivenUp(instruction.request_id, "internal_error"))

    def _arm(self) -> None:
        """Set the timer. Only a dispatch and a place in the queue make the next deadline earlier (by time limits, and by when
        a hedge may pay), so most events do not need this."""
        at = self.scheduler.wake_at
        if at is None or self._wakes_at <= at:
            return  # an early timer does no harm: it asks again
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at
        self._timer = self._loop.call_later(at - self.clock(), self._wake)

    def _wake(self) -> None:
        self._wakes_at = inf
        self._timer = None
        try:
            self.apply(Tick())
        except Exception as error:  # noqa: BLE001 (a callback of the loop: waiting requests need the next tick)
            failed("scheduler-timer", error)
            if self._timer is None:
                self._wakes_at = self.clock() + _RETRY_S
                self._timer = self._loop.call_later(_RETRY_S, self._wake)
