"""When the next exchange with the shared state is due."""

from __future__ import annotations

import asyncio
import time

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
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def due(self) -> None:
        """Wait until the next exchange is due."""
        if self._due_at > time.monotonic():
            self._waiter = asyncio.get_running_loop().create_future()
            self._arm(self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._disarm()
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
            if self._waiter is not None:
                self._disarm()
                self._arm(self._waiter)

    def _arm(self, waiter: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._due_at - time.monotonic()), _wake, waiter)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
