"""Many independent pieces of work on all cores of this machine.

A child never outlives its parent, however that ends: it watches it, and Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import Any, Self, TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")
Started = TypeVar("Started")

#: The system may have no semaphores for many more.
MOST_PROCESSES = 1000


class ProcessLost(RuntimeError):
    """A process that worked was killed, most likely for lack of memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_local(
    function: Callable[[Item], Done], items: Sequence[Item], processes: int
) -> Iterator[tuple[int, Done]]:
    """(index, result) of each item as it is done. What `function` raises is raised here, and the rest given
    up; so it is on Ctrl-C. Function, items and results must be picklable. Raises ProcessLost."""
    with Processes(min(processes, len(items))) as pool:
        yield from pool.run(function, items)


class Processes:
    """Processes for several rounds of work. With one or none the work is done in this process."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._futures: dict[Future[Any], int] = {}
        self._executor: Executor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            # Nothing runs any more unless this was interrupted.
            self._executor.end(give_up=bool(self._futures))

    def run(self, function: Callable[[Item], Done], items: Sequence[Item]) -> Iterator[tuple[int, Done]]:
        """As `run_local`."""
        if self._processes <= 1 or len(items) <= 1:
            for index, item in enumerate(items):
                yield index, function(item)
            return
        self._executor = self._executor or Executor(self._processes)
        submit = partial(self._executor.submit, function)
        try:
            for index, future in a_few_ahead(items, 2 * self._processes, submit, _first_done, self._futures):
                yield index, future.result()
        except BrokenProcessPool:
            raise ProcessLost("a process that simulated was killed; is there enough memory?") from None


def _first_done(futures: Collection[Future[Any]]) -> Iterable[Future[Any]]:
    return wait(futures, return_when=FIRST_COMPLETED).done


def a_few_ahead(
    items: Sequence[Item],
    most: int,
    start: Callable[[Item], Started],
    done: Callable[[Collection[Started]], Iterable[Started]],
    pending: dict[Started, int],
) -> Iterator[tuple[int, Started]]:
    """(index, what `start` gave) of each item as `done` gives it back. At most `most` are `pending` at once: all of them
    would hold every result that nobody has read yet."""
    coming = enumerate(items)

    def start_some(count: int) -> None:
        for index, item in islice(coming, count):
            pending[start(item)] = index

    start_some(most)
    while pending:
        for started in done(pending.keys()):
            index = pending.pop(started)
            start_some(1)
            yield index, started


class Executor(ProcessPoolExecutor):
    """Processes for work that depends on other work. At an error, or Ctrl-C, the block gives up what is not done."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes, mp_context=get_context("spawn"), initializer=_end_with_parent)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(give_up=kind is not None)

    def end(self, *, give_up: bool) -> None:
        """Wait for the processes, or end them. (3.14 has `terminate_workers` for it.)"""
        for process in list((self._processes or {}).values()) if give_up else ():
            process.terminate()
        self.shutdown(cancel_futures=True)

    def submit(self, *work: Any, **named: Any) -> Future[Any]:
        with _interrupts_held():  # a process may start here
            return super().submit(*work, **named)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """What starts in here never sees SIGINT, which a terminal sends to parent and children alike; for the
    parent it waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """A parent that is killed cannot end its children."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
