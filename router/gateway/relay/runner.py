"""The thin asyncio runner: feeds events to the scheduler, hands its instructions to the requests they
concern, and owns the one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic, perf_counter
from typing import Any

from router.background import failed
from router.core.errors import Refusal
from router.core.events import Arrived, Cancel, Dispatch, Ended, Event, Instruction, Left, Refuse, Tick
from router.core.scheduler import Scheduler
from router.core.types import EndedHow, Request

#: A timer that failed goes off again after this long.
_AGAIN_S = 0.5


class Ticket:
    """One request's end of the runner.

    The task that relays the request waits here for its next instruction. A refusal that comes while an
    attempt is under way (time passed) or a client that leaves cancels that task; `refusal` and `left` then
    say why. A hedge to begin and an attempt to give up are not waited for: `beside` takes them at once.
    """

    __slots__ = ("_beside", "_instruction", "_waiter", "left", "refusal", "request", "task")

    def __init__(
        self, request: Request, task: asyncio.Task[Any], beside: Callable[[Dispatch | Cancel], None]
    ) -> None:
        self.request = request
        self.task = task
        self.refusal: Refusal | None = None
        self.left = False
        self._beside = beside
        self._instruction: Dispatch | Refuse | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the task was cancelled by us, not by the server's shutdown."""
        return self.left or self.refusal is not None

    async def next(self) -> Dispatch | Refuse:
        """The next instruction; waits while the request is queued."""
        while self._instruction is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        instruction, self._instruction = self._instruction, None
        return instruction

    def deliver(self, instruction: Instruction, current: bool) -> None:
        """Take an instruction. `current`: it answers the ticket's own event, so its task will ask for it."""
        if isinstance(instruction, Cancel) or (isinstance(instruction, Dispatch) and instruction.hedge):
            self._beside(instruction)
        elif current or self._waiter is not None or isinstance(instruction, Dispatch):
            self._instruction = instruction
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        else:
            self.refusal = instruction.refusal
            self.task.cancel()


class Runner:
    """Executes a scheduler in the running event loop. `clock` gives seconds and never goes back (a loop's
    own time is cached, on uvloop in whole milliseconds: too coarse for latencies)."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        #: Hears the policy and the seconds that a decision took.
        self.on_decision: Callable[[str, float], None] | None = None
        #: Hears that an attempt may have begun or ended, so that other replicas of the router are told soon.
        self.on_work: Callable[[], None] | None = None
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf

    def submit(
        self, request: Request, task: asyncio.Task[Any], beside: Callable[[Dispatch | Cancel], None]
    ) -> Ticket:
        """Bring a request in; its first instruction is read from the ticket. `beside` is called in the moment that
        a second attempt is to begin or one of two is to be given up; it must not raise."""
        ticket = self._tickets[request.id] = Ticket(request, task, beside)
        began = perf_counter()
        try:
            self.apply(Arrived(request), ticket)
        except BaseException:
            self.close(ticket)
            raise
        if self.on_decision is not None:
            self.on_decision(request.policy, perf_counter() - began)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The client has gone: stop what is being done for it."""
        if self._tickets.pop(ticket.request.id, None) is not None:
            ticket.left = True
            self.apply(Left(ticket.request.id))
            ticket.task.cancel()

    def close(self, ticket: Ticket) -> None:
        """The request has ended, whatever way; no instruction will reach it any more."""
        request_id = ticket.request.id
        self._tickets.pop(request_id, None)
        if self.scheduler.knows(request_id):  # its task was ended from outside, or failed
            self.apply(Left(request_id))

    def apply(self, event: Event, origin: Ticket | None = None) -> None:
        """Feed one event and deliver what comes of it. `origin` is the ticket whose task calls."""
        instructions = self.scheduler.handle(event, self.clock())
        if self.on_work is not None and (instructions or type(event) is Ended or type(event) is Left):
            self.on_work()
        for instruction in instructions:
            ticket = self._tickets.get(instruction.request_id)
            if ticket is not None:
                ticket.deliver(instruction, current=ticket is origin)
        if instructions or self.scheduler.queue_depth or self._may_be_earlier(event):
            self._arm()

    @staticmethod
    def _may_be_earlier(event: Event) -> bool:
        """Whether an event makes an earlier deadline though nothing came of it: one of two attempts that failed
        waits anew, and a tick has used up the timer or follows other settings."""
        return type(event) is Tick or (type(event) is Ended and event.how is EndedHow.FAILED)

    def _arm(self) -> None:
        """Set the timer. Only what is dispatched or queued makes the next deadline earlier (its time limits, and
        when a hedge may pay), so most events need not ask for it."""
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
        except Exception as error:  # noqa: BLE001 (a callback of the loop: whoever waits must be looked at again)
            failed("scheduler-timer", error)
            if self._timer is None:
                self._wakes_at = self.clock() + _AGAIN_S
                self._timer = self._loop.call_later(_AGAIN_S, self._wake)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


__all__ = ["Dispatch", "Refuse", "Runner", "Ticket"]
