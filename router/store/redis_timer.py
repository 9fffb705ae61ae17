"""When the next exchange with the shared state is due."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

#: Changes that others should know soon are collected for this time, so that load does not multiply calls.
_GATHER_S = 0.005
#: The interval while nothing changes anywhere: with other replicas, and without.
_QUIET_S, _SINGLE_S = 0.1, 0.2
#: The interval of attempts while Redis does not answer.
RETRY_S = 0.5


class ExchangeTimer:
    """At once when a caller waits; after `interval_s` while anything changes; slower when nothing does."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = self._pause_s = interval_s
        self._ended_at = self._due_at = time.monotonic()
        self._earlier = asyncio.Event()  # the exchange is due earlier than it was

    async def due(self) -> None:
        """Wait until the next exchange is due."""
        while (left_s := self._due_at - time.monotonic()) > 0:
            self._earlier.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._earlier.wait()
        self._due_at = float("inf")  # requests from here on are for the exchange after this one

    def at_once(self) -> None:
        """A caller waits for an answer."""
        self._bring(0.0)

    def soon(self) -> None:
        """Others should know about a change."""
        self._bring(self._ended_at + _GATHER_S)

    def ended(self, *, changed: bool, replicas: int) -> None:
        """An exchange has ended. `replicas` is the number of live replicas; `changed`: something was sent or received."""
        quiet_s = max(self._interval_s, _SINGLE_S if replicas < 2 else _QUIET_S)
        self._pause_s = self._interval_s if changed else min(2 * self._pause_s, quiet_s)
        self._ended_at = time.monotonic()
        if 0.0 < self._due_at < self._ended_at + _GATHER_S:
            self._due_at = self._ended_at + _GATHER_S
        self._due_at = min(self._due_at, self._ended_at + self._pause_s)

    def failed(self) -> None:
        """An exchange has failed."""
        self._pause_s = self._interval_s
        self._ended_at = time.monotonic()
        self._due_at = self._ended_at + RETRY_S

    def _bring(self, at: float) -> None:
        if at < self._due_at:
            self._due_at = at
            self._earlier.set()
