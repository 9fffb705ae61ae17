"""An event loop on virtual time: whenever nothing is left to do, its clock jumps to the next timer.

So an hour of timers takes as long as their callbacks, and each fires at the very time that it was set to.
Timers of one time fire in the order in which they were set. For code without sockets and threads: a loop that
waits for something no timer will bring raises `Deadlock`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is ready, and no timer is set."""


class _Timer(events.TimerHandle):
    """A timer that goes before those of the same time that were set after it."""

    __slots__ = ("order",)
    _scheduled: bool  # whether it is in the loop's heap

    def __init__(self, order: int, *args: Any) -> None:
        super().__init__(*args)
        self.order = order

    def __lt__(self, other: events.TimerHandle) -> bool:
        assert isinstance(other, _Timer)
        return (self.when(), self.order) < (other.when(), other.order)


class _Selector(selectors.SelectSelector):
    """Never waits: it moves the loop's clock."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("nothing is ready, and no timer is set")
            if timeout > 0:
                self.loop.jump()
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual and begins at 0. Work for an executor is done at once, on the loop's own thread."""

    _scheduled: list[_Timer]  # the base class's heap

    def __init__(self) -> None:
        self._now = 0.0
        self._orders = count()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Move the clock to the next timer."""
        self._now = self._scheduled[0].when()

    @property
    def _clock_resolution(self) -> float:
        # The loop runs timers that are due before `time() + _clock_resolution`: those of this very time.
        return math.ulp(self._now)

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        """The base class sets that of the system's clock."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = _Timer(next(self._orders), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (raised where the future is awaited)
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
