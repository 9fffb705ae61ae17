"""The writes of several steps, sent together.

A write wakes the process that it goes to. If each write finds it asleep again, waking it takes longer than the write itself
(docs/performance.md). So steps that are taken one after another keep their writes for a moment: the first of them wakes the
process, and the others find it awake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter

logger = logging.getLogger("headway")

#: No write waits longer than this and the step under way.
_LONGEST_S = 0.001

#: What waits to be written, and where; None: nothing has to wait.
_waiting: list[tuple[asyncio.Transport, bytes]] | None = None


def write(transport: asyncio.Transport, data: bytes) -> None:
    """Write now, or with the writes of the other steps of `together`. Whoever closes `transport` in the same step must not use
    this."""
    if _waiting is None:
        transport.write(data)
    else:
        _waiting.append((transport, data))


def together(steps: Sequence[Callable[[], object]]) -> None:
    """Take the steps. One that fails is logged, and the others are taken."""
    global _waiting  # noqa: PLW0603 (nothing else runs until the last step is taken)
    if steps[1:]:
        _waiting = []
        began_s = perf_counter()
    for step in steps:
        try:
            step()
        except Exception:
            logger.exception("a step of a request failed")
        if _waiting and perf_counter() - began_s > _LONGEST_S:
            _send(_waiting)
            began_s = perf_counter()
    waiting, _waiting = _waiting, None
    if waiting:
        _send(waiting)


def _send(waiting: list[tuple[asyncio.Transport, bytes]]) -> None:
    for transport, data in waiting:
        if not transport.is_closing():
            transport.write(data)
    waiting.clear()


class EndOfTurn:
    """Steps that are taken together after this turn of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: list[Callable[[], object]] = []

    def add(self, step: Callable[[], object]) -> None:
        """Take `step` then."""
        if not self._steps:
            self._loop.call_soon(self._take)
        self._steps.append(step)

    def _take(self) -> None:
        steps, self._steps = self._steps, []
        together(steps)
