"""An event loop on virtual time: whenever nothing is left to do, its clock jumps to the next timer.

An hour of timers takes as long as their callbacks, and each fires at the very time that it was set to.
Timers of one time fire in the order in which they were set. A loop that waits for something that no timer
brings raises `Deadlock`.

Both ends of a connection may live on the loop: what one end writes to a loopback socket is there for the other
end at once, so the clock waits for it. aiosqlite's threads are known too (`SqliteQueue`), and the process that writes
records (`AwaitedWriterProcess`), and lookups of names (`lookups_are_waited_for`). Other processes and threads are not:
whoever waits for them needs the machine's clock.

A folder's `conftest.py` imports `pytest_asyncio_loop_factories` to run its tests on virtual time, but for those marked
`real_time`, `database_work_is_waited_for` where they have a store, and `lookups_are_waited_for` where an engine has a name.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import Context
from itertools import count
from queue import SimpleQueue
from time import sleep
from typing import Any, TypeVar

import aiosqlite.core
import pytest

from backends import pool
from router.store.commits import Run, Written
from router.store.writer_process import WriterProcess

T = TypeVar("T")

#: How long the loop really waits before its clock jumps: a kernel thread may still carry a packet over loopback.
_GRACE_S = 0.0005
#: How often a loop that is closed waits so long for connections of which the other end is closed.
_GRACES = 2000


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
    """Does not wait for timers: it moves the loop's clock."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        idle = timeout is None or timeout > 0
        if idle and self.loop.threads_at_work:
            return super().select(None)
        connected = len(self.get_map()) > 1  # beside the loop's own pipe
        ready = super().select(0) or (super().select(_GRACE_S) if idle and connected else [])
        if idle and not ready:
            if timeout is None:
                raise Deadlock("nothing is ready, and no timer is set")
            self.loop.jump()
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual and begins at 0. Work for an executor is done at once, on the loop's own thread."""

    _scheduled: list[_Timer]  # the base class's heap
    _transports: Mapping[int, asyncio.WriteTransport]  # the base class's, of all connections

    def __init__(self) -> None:
        self._now = 0.0
        #: Calls that other threads are executing for this loop. Until they are done the clock stands still.
        self.threads_at_work = 0
        self._orders = count()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def close(self) -> None:
        """A connection whose other end is closed may not know it yet."""
        for _ in range(0 if self.is_closed() else _GRACES):
            self.run_until_complete(asyncio.sleep(0))
            if all(
                each.is_closing() and not each.get_write_buffer_size() for each in self._transports.values()
            ):
                break
            sleep(_GRACE_S)
        super().close()

    def stand_still(self, until: asyncio.Future[Any]) -> None:
        """Stop the clock until another thread has done its work."""
        self.threads_at_work += 1
        until.add_done_callback(self._go_on)

    def _go_on(self, _: object) -> None:
        self.threads_at_work -= 1

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


class SqliteQueue(SimpleQueue[Any]):
    """aiosqlite's queue of work for a connection's thread, in place of `aiosqlite.core.SimpleQueue`: virtual time
    stands still while the thread works."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future = item[0]
        loop = None if future is None else future.get_loop()
        if future is not None and isinstance(loop, VirtualTimeLoop):
            loop.stand_still(future)
        super().put_nowait(item)


class AwaitedWriterProcess(WriterProcess):
    """In place of `router.store.writer_process.WriterProcess`: virtual time stands still while it works."""

    async def started(self) -> None:
        await _still(super().started())

    async def commit(self, run: Run, lines: Sequence[bytes]) -> Written:
        return await _still(super().commit(run, lines))


async def _still(work: Coroutine[Any, Any, T]) -> T:
    doing = asyncio.ensure_future(work)
    loop = doing.get_loop()
    if isinstance(loop, VirtualTimeLoop):
        loop.stand_still(doing)
    return await doing


def loop_time() -> float:
    """The running loop's time: the machine's, or virtual."""
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time") is not None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True, scope="package")
def database_work_is_waited_for() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiosqlite.core, "SimpleQueue", SqliteQueue)
        patch.setattr("router.store.queries.WriterProcess", AwaitedWriterProcess)
        yield


@pytest.fixture(autouse=True, scope="package")
def lookups_are_waited_for() -> Iterator[None]:
    look_up = pool._look_up

    def looked_up(host: str, port: int) -> Future[list[tuple[Any, ...]]]:
        found = look_up(host, port)
        if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
            wait([found])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_look_up", looked_up)
        yield
