"""Draining instances: nothing more is sent to them, and they leave when they are idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from router.background import Tasks
from router.config import ConfigError
from router.core.errors import Refusal
from router.core.events import DrainChanged
from router.gateway.relay.runner import Runner
from router.store.state import State

logger = logging.getLogger("headway")

#: A draining instance is checked this often. It leaves after being idle so many times in a row: other replicas may have
#: sent requests that are not reported yet.
_CHECK_S = 0.2
_IDLE_CHECKS_ALONE, _IDLE_CHECKS = 1, 3


class Drains:
    """Follows the draining instances. `remove` takes an instance out for all replicas; it raises Refusal, ConfigError."""

    def __init__(self, runner: Runner, state: State, remove: Callable[[str], Awaitable[None]]) -> None:
        self._runner = runner
        self._state = state
        self._remove = remove
        self._draining: frozenset[str] = frozenset()
        self._tasks = Tasks()

    def follow(self, draining: frozenset[str]) -> None:
        """Set the instances that drain now. Others that drained before take requests again."""
        released, self._draining = self._draining - draining, draining
        instances = self._runner.scheduler.instances
        for name in sorted(released & instances.keys()):
            self._runner.apply(DrainChanged(name, False))
        for name in sorted(draining & instances.keys()):
            if not instances[name].draining:
                self._runner.apply(DrainChanged(name, True))
                self._tasks.start(self._leave(name), f"drain {name}")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _leave(self, name: str) -> None:
        """Remove a draining instance when no replica has requests there."""
        idle = 0
        while name in self._draining:
            instance = self._runner.scheduler.instances.get(name)
            if instance is None:
                return
            idle = 0 if instance.in_flight else idle + 1
            if idle >= (_IDLE_CHECKS if self._state.health.shared else _IDLE_CHECKS_ALONE):
                try:
                    await self._remove(name)
                except (Refusal, ConfigError) as error:
                    logger.warning("instance %s is drained but cannot leave yet: %s", name, error)
                    idle = 0
            await asyncio.sleep(_CHECK_S)
