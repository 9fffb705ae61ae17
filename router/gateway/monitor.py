"""Watches each instance: a health probe and a read of its load, once an interval, one task an instance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from router.core.errors import UpstreamError
from router.core.events import LoadReported, Probed
from router.core.interfaces import Backend
from router.gateway.runner import Runner

logger = logging.getLogger("headway.monitor")


class Monitor:
    """Probes instances and tells the scheduler. `interval_s` between rounds, `timeout_s` for one answer."""

    def __init__(self, runner: Runner, interval_s: float, timeout_s: float) -> None:
        self._runner = runner
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def look(self, backends: Mapping[str, Backend]) -> None:
        """One round over all instances, so that what is known of them at the start is true."""
        await asyncio.gather(*(self._probe(name, backend) for name, backend in backends.items()))

    def watch(self, backends: Mapping[str, Backend]) -> None:
        """Watch exactly these instances from now on."""
        for name in [name for name in self._tasks if name not in backends]:
            self._tasks.pop(name).cancel()
        for name, backend in backends.items():
            if name not in self._tasks:
                task = asyncio.create_task(self._watch(name, backend), name=f"monitor {name}")
                self._tasks[name] = task

    def renew(self, name: str) -> None:
        """Forget an instance whose backend has changed; the next `watch` starts it anew."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self, name: str, backend: Backend) -> None:
        was_healthy: bool | None = None
        while True:
            healthy = await self._probe(name, backend)
            if healthy is not was_healthy:
                level = logging.WARNING if not healthy or was_healthy is False else logging.DEBUG
                logger.log(
                    level, "instance %s %s", name, "answers" if healthy else "does not answer its probe"
                )
                was_healthy = healthy
            await asyncio.sleep(self.interval_s)

    async def _probe(self, name: str, backend: Backend) -> bool:
        """One round; any failure to answer in time is unhealthy."""
        try:
            async with asyncio.timeout(self.timeout_s):
                healthy = await backend.probe()
        except (UpstreamError, TimeoutError):
            healthy = False
        self._runner.apply(Probed(name, healthy))
        if healthy:
            try:
                async with asyncio.timeout(self.timeout_s):
                    report = await backend.load()
            except (UpstreamError, TimeoutError):
                return healthy  # it lives, its load is unknown
            self._runner.apply(LoadReported(name, report))
        return healthy
