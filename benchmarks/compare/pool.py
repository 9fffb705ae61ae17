"""Many independent pieces of work on all cores of this machine.

A child never outlives its parent, however that ends: it watches it, and Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import TypeVar

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
    if processes <= 1 or len(items) <= 1:
        for index, item in enumerate(items):
            yield index, function(item)
        return
    executor = ProcessPoolExecutor(
        min(processes, len(items)), mp_context=get_context("spawn"), initializer=_end_with_parent
    )
    futures: dict[Future[Done], int] = {}
    coming = iter(enumerate(items))

    def submit_next() -> bool:
        following = next(coming, None)
        if following is not None:
            with _interrupts_held():  # a process may start here
                futures[executor.submit(function, following[1])] = following[0]
        return following is not None

    try:
        # A few ahead of the processes: all at once would hold every result that nobody has read yet.
        while len(futures) < 2 * processes and submit_next():
            pass
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            for future in done:
                index = futures.pop(future)
                submit_next()
                yield index, future.result()
    except BrokenProcessPool:
        raise ProcessLost("a process that simulated was killed; is there enough memory?") from None
    finally:
        # Nothing runs any more unless this was interrupted. (3.14 has `terminate_workers` for it.)
        if futures:
            for process in list((executor._processes or {}).values()):
                process.terminate()
        executor.shutdown(cancel_futures=True)


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
