"""Watches each instance in a task of its own: a health probe and a load report in each interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from router.background import Tasks, failed, surviving
from router.core.eligibility import REPORT_HOLDS_S
from router.core.errors import UpstreamError
from router.core.events import LoadReported, Probed, Tick
from router.core.interfaces import Backend
from router.gateway.runner import Runner

logger = logging.getLogger("headway.monitor")

_Answer = TypeVar("_Answer")

#: After this time a report no longer limits its engine's queue, so a waiting request may go there. (A sleep may end a
#: millisecond early.)
_EXPIRED_S = REPORT_HOLDS_S + 0.01
#: So many instances are first probed at once, and the next ones so much later, if the interval is long enough for all.
#: Thousands at once would hold up the event loop until they miss their own time limit, and do so again in each interval.
_AT_ONCE, _APART_S = 50, 0.05


class Monitor:
    """Probes instances and reports to the scheduler. `interval_s` is between rounds, `timeout_s` for one answer."""

    def __init__(self, runner: Runner, interval_s: float, timeout_s: float) -> None:
        self._runner = runner
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._tasks = Tasks()
        self._watching: dict[str, tuple[Backend, asyncio.Task[Any]]] = {}

    async def probe_all(self, backends: Mapping[str, Backend]) -> None:
        """Probe all instances once, so that the scheduler starts with their true state."""

        async def probe(name: str, backend: Backend, after_s: float) -> None:
            await asyncio.sleep(after_s)
            await self._round(name, backend)

        await asyncio.gather(*(probe(*each) for each in self._in_turn(backends)))

    def watch(self, backends: Mapping[str, Backend]) -> None:
        """Watch exactly these instances, by these adapters, from now on."""
        for name, (backend, task) in list(self._watching.items()):
            if backends.get(name) is not backend:
                del self._watching[name]
                task.cancel()
        new = {name: backend for name, backend in backends.items() if name not in self._watching}
        for name, backend, after_s in self._in_turn(new):
            task = self._tasks.start(self._watch(name, backend, after_s), f"monitor {name}")
            self._watching[name] = backend, task

    async def stop(self) -> None:
        self._watching.clear()
        await self._tasks.stop()

    def _in_turn(self, backends: Mapping[str, Backend]) -> Iterator[tuple[str, Backend, float]]:
        """Each instance, and after how many seconds it is first probed."""
        apart_s = min(_APART_S, self.interval_s / max(len(backends) / _AT_ONCE, 1))
        for at, (name, backend) in enumerate(backends.items()):
            yield name, backend, at // _AT_ONCE * apart_s

    async def _watch(self, name: str, backend: Backend, after_s: float) -> None:
        was_healthy: bool | None = None
        await asyncio.sleep(after_s)
        while True:
            with surviving("monitor"):
                fault = await self._round(name, backend)
                healthy = fault is None
                if healthy is not was_healthy:
                    level = logging.WARNING if not healthy or was_healthy is False else logging.DEBUG
                    what = "answers" if healthy else f"does not answer its probe: {fault}"
                    logger.log(level, "instance %s %s", name, what)
                    was_healthy = healthy
                    mismatches, _ = await self._ask(backend.mismatches) if healthy else (None, None)
                    for mismatch in mismatches or ():
                        logger.warning("instance %s: %s", name, mismatch)
            left_s = self.interval_s
            if left_s > _EXPIRED_S:
                await asyncio.sleep(_EXPIRED_S)
                with surviving("monitor"):
                    self._runner.apply(Tick())
                left_s -= _EXPIRED_S
            await asyncio.sleep(left_s)

    async def _round(self, name: str, backend: Backend) -> str | None:
        """Probe once. Returns why the instance is unhealthy, None if it is not. The load of a healthy one may be unknown."""
        healthy, fault = await self._ask(backend.probe)
        self._runner.apply(Probed(name, healthy or False))
        if not healthy:
            return fault or "it is not healthy"
        report, _ = await self._ask(backend.load)
        if report is not None:
            self._runner.apply(LoadReported(name, report))
        return None

    async def _ask(self, ask: Callable[[], Awaitable[_Answer]]) -> tuple[_Answer | None, str | None]:
        """An engine's answer, or why there is none."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await ask(), None
        except TimeoutError:
            return None, "no answer in time"
        except UpstreamError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 (no answer of an engine may end its watch)
            failed("monitor", error)
            return None, type(error).__name__
