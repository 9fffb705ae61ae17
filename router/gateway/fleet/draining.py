"""Draining instances: nothing more is sent to them, and they leave when they are idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from router.background import Tasks
from router.config import ConfigError
from router.core.errors import Refusal
from router.core.events import DrainChanged
from router.gateway.runner import Runner
from router.store.state import State

logger = logging.getLogger("headway")

#: Draining instances are checked this often. One leaves after being idle so many times in a row: other replicas may have
#: sent requests that are not reported yet.
_CHECK_S = 0.2
_IDLE_CHECKS_ALONE, _IDLE_CHECKS = 1, 3


class Drains:
    """Follows the draining instances. `remove` takes instances out for all replicas; it raises Refusal, ConfigError."""

    def __init__(
        self, runner: Runner, state: State, remove: Callable[[Collection[str]], Awaitable[None]]
    ) -> None:
        self._runner = runner
        self._state = state
        self._remove = remove
        self._idle: dict[str, int] = {}  # by draining instance: the checks in a row at which it was idle
        self._tasks = Tasks()
        self._checking: asyncio.Task[None] | None = None

    def follow(self, draining: frozenset[str]) -> None:
        """Set the instances that drain now. Others that drained before take requests again."""
        instances = self._runner.scheduler.instances
        for name in sorted(self._idle.keys() & instances.keys() - draining):
            self._runner.apply(DrainChanged(name, False))
        self._idle = {name: self._idle.get(name, 0) for name in sorted(draining & instances.keys())}
        for name in self._idle:
            if not instances[name].draining:
                self._runner.apply(DrainChanged(name, True))
        if self._idle and (self._checking is None or self._checking.done()):
            self._checking = self._tasks.start(self._check(), "drain")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _check(self) -> None:
        """Remove the draining instances at which no replica has requests, as one change."""
        while self._idle:
            instances = self._runner.scheduler.instances
            for name, checks in self._idle.items():
                instance = instances.get(name)
                self._idle[name] = 0 if instance is None or instance.in_flight else checks + 1
            enough = _IDLE_CHECKS if self._state.health.shared else _IDLE_CHECKS_ALONE
            leaving = [name for name, checks in self._idle.items() if checks >= enough]
            if leaving:
                try:
                    await self._remove(leaving)
                except (Refusal, ConfigError) as error:
                    logger.warning("%s cannot leave yet, drained: %s", ", ".join(leaving), error)
                    self._idle = dict.fromkeys(self._idle, 0)
            await asyncio.sleep(_CHECK_S)
