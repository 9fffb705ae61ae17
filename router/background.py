"""Background work: tasks, callbacks of the event loop, and the steps of a shutdown.

An exception in any of them does not end the process. It is counted (`headway_background_failures_total`) and logged, at
most once a minute for each kind. `Tasks` holds the tasks of one owner; `surviving` guards one iteration of a loop, one
callback or one step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("headway.background")

LOG_INTERVAL_S = 60.0
_MAX_KINDS = 1000  # kinds of failures whose last log time is remembered

_failures: Counter[str] = Counter()
_logged_at: dict[tuple[str, str, str], float] = {}


def failures() -> Mapping[str, int]:
    """The number of survived failures of each task in this process."""
    return _failures


def failed(task: str, error: BaseException, at: str = "") -> None:
    """Count a failure of `task` (a name from the code, never a client's text). Log it, with `at` (such as a server's URL without
    a login), unless the same kind was logged within `LOG_INTERVAL_S`."""
    _failures[task] += 1
    kind, now = (task, at, type(error).__name__), time.monotonic()
    last = _logged_at.get(kind)
    if last is not None and now - last < LOG_INTERVAL_S:
        return
    if len(_logged_at) >= _MAX_KINDS:
        _logged_at.clear()
    _logged_at[kind] = now
    where = f" at {at}" if at else ""
    logger.error("%s failed%s (%s); it continues", task, where, type(error).__name__, exc_info=error)


@contextmanager
def surviving(task: str, at: str = "") -> Iterator[None]:
    """Report an exception from the block by `failed` and continue after the block. A cancellation is not caught."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the root of what runs in the background)
        failed(task, error, at)


async def close_all(task: str, *steps: Callable[[], Awaitable[Any]]) -> None:
    """Run all steps of a shutdown in order, even if some of them fail."""
    for step in steps:
        with surviving(task):
            await step()


class Tasks:
    """The tasks of one owner. It keeps them referenced until they end, and reports their failures."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work`. Failures are reported under `name` up to its first space."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(task.get_name().partition(" ")[0], error)

    async def finish(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.finish()
