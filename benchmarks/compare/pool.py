"""Many independent pieces of work on all cores of this machine.

A child never outlives its parent, however that ends: it watches it, and Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import Any, Self, TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")


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
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is None:
            return
        # Nothing runs any more unless this was interrupted. (3.14 has `terminate_workers` for it.)
        if self._futures:
            for process in list((self._executor._processes or {}).values()):
                process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def run(self, function: Callable[[Item], Done], items: Sequence[Item]) -> Iterator[tuple[int, Done]]:
        """As `run_local`."""
        if self._processes <= 1 or len(items) <= 1:
            for index, item in enumerate(items):
                yield index, function(item)
            return
        self._executor = executor = self._executor or ProcessPoolExecutor(
            self._processes, mp_context=get_context("spawn"), initializer=_end_with_parent
        )
        futures: dict[Future[Done], int] = self._futures
        coming = enumerate(items)

        def submit(most: int) -> None:
            for index, item in islice(coming, most):
                with _interrupts_held():  # a process may start here
                    futures[executor.submit(function, item)] = index

        try:
            # A few ahead of the processes: all at once would hold every result that nobody has read yet.
            submit(2 * self._processes)
            while futures:
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in done:
                    index = futures.pop(future)
                    submit(1)
                    yield index, future.result()
        except BrokenProcessPool:
            raise ProcessLost("a process that simulated was killed; is there enough memory?") from None


@contextmanager
def executor(processes: int) -> Iterator[Executor]:
    """An executor for work that depends on other work. An error, or Ctrl-C, gives up what is not done."""
    made = _Executor(processes, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        yield made
    except BaseException:
        for process in list((made._processes or {}).values()):
            process.terminate()
        raise
    finally:
        made.shutdown(cancel_futures=True)


class _Executor(ProcessPoolExecutor):
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
