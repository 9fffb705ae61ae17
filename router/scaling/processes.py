"""The actuator `processes`: engines as child processes on this machine.

An engine joins the fleet when it answers its probe, by the same change as `POST /admin/instances`. To leave, it drains: it
gets no new request, and leaves the fleet when no replica has a request there. It is stopped after that, when its own report
says that it is idle. So no running stream is cut. A crashed engine leaves the fleet. The next one starts after a pause, which
doubles with each further crash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from router.background import Tasks, surviving
from router.config import FleetConfig, InstanceConfig, PoolConfig
from router.config.marks import Variable, named
from router.config.scaling import NUMBER, PORT
from router.core.errors import UpstreamError
from router.core.interfaces import Backend
from router.gateway.fleet.overlay import Edit, adding, draining, removing
from router.gateway.service import Gateway
from router.listening import free_port
from router.scaling.actuator import Actuator, PoolState, steps

logger = logging.getLogger("headway")

#: Seconds between two probes of a starting engine, and between two looks at a leaving one.
_LOOK_S = 0.2
#: An engine is stopped if it is not ready after this many times its cold start, and at least this many seconds.
_STARTS, _LEAST_START_S = 10.0, 60.0
#: The pause after a crash doubles from the first to the longest. After this uptime of an engine it starts again at the first.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _SOUND_S = 1.0, 60.0, 60.0
#: An instance that does not answer for this long is stopped.
_SILENT_S = 30.0
#: When the gateway stops, streams of other replicas may continue for this long.
_CLOSE_S = 30.0
#: A change of the fleet that was refused is tried again after this long.
_AGAIN_S = 1.0
#: Seconds from SIGTERM to SIGKILL of an engine, and what its keeper may take beyond that.
GRACE_S, _KEEPER_S = 30.0, 5.0


@dataclass(slots=True, eq=False)
class _Engine:
    """One engine of this replica, at `url` on 127.0.0.1. `pause_s`: the last pause after a crash in its pool when it was started.
    `joined`: it is or was in the fleet. `ending`: it is stopped. `task` runs it. `process` is its keeper
    (`router.scaling.keeper`), None until it is started."""

    pool: PoolConfig
    number: int
    pause_s: float
    task: asyncio.Task[None] | None = None
    joined: bool = False
    ending: bool = False
    process: asyncio.subprocess.Process | None = None
    url: str = ""

    @property
    def starts(self) -> bool:
        """Whether it is not in the fleet yet."""
        return not (self.joined or self.ending)

    def fits(self, pool: PoolConfig | None) -> bool:
        """Whether it still belongs to its pool, which is `pool` in the fleet file now (None: it is there no more). One that
        serves may have been started by another command."""
        if pool is None:
            return False
        parts = ("instance", "command", "environment") if self.starts else ("model",)
        return all(getattr(pool, part) == getattr(self.pool, part) for part in parts)

    @property
    def name(self) -> str:
        return f"{self.pool.name}-{self.number}"

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self.process is None else self.process.returncode

    async def start(self, environment: Mapping[str, str]) -> None:
        """Start it in `environment`, with what its pool adds. Its output goes to the gateway's standard error."""
        port = free_port()

        def filled(text: str) -> str:
            return text.replace(PORT, str(port)).replace(NUMBER, str(self.number))

        assert self.pool.command is not None  # noqa: S101 (the fleet file is checked for it)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "router.scaling.keeper",
            str(GRACE_S),
            *map(filled, self.pool.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={**environment, **{name: filled(value) for name, value in self.pool.environment.items()}},
            start_new_session=True,  # Ctrl-C must reach only the gateway, which drains before it stops the engines
        )
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        """End it, if it was started: SIGTERM, and SIGKILL after `GRACE_S`."""
        process = self.process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S + _KEEPER_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        logger.info("engine %s has ended", self.name)


class Processes(Actuator):
    """The engines that this replica runs. `make_backend` makes the adapter that probes one."""

    def __init__(
        self,
        gateway: Gateway,
        make_backend: Callable[[InstanceConfig, FleetConfig], Awaitable[Backend]],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(gateway)
        self._make_backend = make_backend
        self._environment = environment
        self._engines: dict[str, _Engine] = {}
        self._silent_since: dict[str, float] = {}  # instances that do not answer, as of the last look
        self._pauses_s: dict[str, float] = {}  # the last pause after a crash, by pool
        self._not_before: dict[str, float] = {}  # when the next engine of a pool may start
        self._closing = False
        self._tasks, self._endings = Tasks(), Tasks()

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        """Remove instances that do not answer: their engine hangs, or it ended with its worker."""
        now, gateway = time.monotonic(), self._gateway
        silent: dict[str, float] = {}
        for config in gateway.changes.overlay.added:
            instance = gateway.runner.scheduler.instances.get(config.name)
            stoppable = any(pool.has(config) and _is_engine(config.name, pool) for pool in pools.values())
            if stoppable and instance is not None and not instance.healthy:
                silent[config.name] = self._silent_since.get(config.name, now)
        self._silent_since = silent
        for name in [name for name, since in silent.items() if now - since >= _SILENT_S]:
            del silent[name]
            logger.error("instance %s has not answered for %g s: it is stopped", name, _SILENT_S)
            await self._edit(removing(name))

    def starting(self, pool: str) -> int:
        """The number of a pool's engines that are not in the fleet yet."""
        return sum(each.pool.name == pool and each.starts for each in self._engines.values())

    def stand_back(self) -> None:
        self._silent_since = {}
        for engine in self._engines.values():
            if engine.starts and engine.task is not None:
                engine.task.cancel()

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        for name, pool in pools.items():
            await self._scale(pool, wanted[name])
        for engine in list(self._engines.values()):
            if not engine.fits(pools.get(engine.pool.name)):  # the fleet file has changed
                await self._give_up(engine)

    async def _scale(self, pool: PoolConfig, wanted: int) -> None:
        todo = steps(wanted, self._state(pool))
        await self._keep_and_drain(todo)
        for _ in range(todo.start):
            if time.monotonic() >= self._not_before.get(pool.name, 0.0):
                self._start(pool)
        starting = [each for each in self._engines.values() if each.pool.name == pool.name and each.starts]
        for engine in starting[len(starting) - todo.abandon :]:
            await self._give_up(engine)

    def _state(self, pool: PoolConfig) -> PoolState:
        """The state of a pool. Only engines of this replica may be stopped, and instances with an engine's name, which are
        another worker's."""
        gateway = self._gateway
        ready: dict[str, int] = {}
        drains: dict[str, int] = {}
        fixed = 0
        added = {each.name for each in gateway.changes.overlay.added}
        for config in gateway.config.instances:
            if not pool.has(config):
                continue
            instance = gateway.runner.scheduler.instances[config.name]
            stoppable = config.name in added and _is_engine(config.name, pool)
            if instance.draining:
                if config.name in gateway.changes.overlay.scaled_down:
                    drains[config.name] = instance.in_flight
            elif instance.healthy and stoppable:
                ready[config.name] = instance.in_flight
            elif instance.healthy:
                fixed += 1
        return PoolState(ready, drains, fixed, self.starting(pool.name))

    # --- one engine ------------------------------------------------------------------------------------
    def _start(self, pool: PoolConfig) -> None:
        taken = self._engines.keys() | {each.name for each in self._gateway.config.instances}
        number = next(n for n in range(len(taken) + 1) if f"{pool.name}-{n}" not in taken)
        engine = _Engine(pool, number, self._pauses_s.get(pool.name, 0.0))
        self._engines[engine.name] = engine
        engine.task = self._tasks.start(self._run(engine), "scaling")

    async def _give_up(self, engine: _Engine) -> None:
        """Stop an engine. One that serves drains first."""
        if engine.joined and not engine.ending:
            await self._edit(draining(engine.name))
        elif engine.starts and engine.task is not None:
            engine.task.cancel()

    async def _run(self, engine: _Engine) -> None:
        """The life of one engine."""
        backend = None
        try:
            await engine.start(self._without_secrets(engine.pool))
            instance = engine.pool.instance.at(engine.name, engine.url)
            backend = await self._make_backend(instance, self._gateway.config)
            began = time.monotonic()
            if not await self._ready(engine, backend):
                self._failed(engine)
                return
            logger.info("engine %s is ready after %.1f s", engine.name, time.monotonic() - began)
            joined = await self._join(engine, instance)
            self.on_change()
            if not joined:
                return
            began = time.monotonic()
            if await self._serve(engine, instance):
                await self._idle(engine, backend)
            else:
                if time.monotonic() - began >= _SOUND_S:
                    engine.pause_s = self._pauses_s[engine.pool.name] = 0.0
                self._failed(engine)
                await self._until_made(removing(engine.name))
        finally:
            engine.ending = True
            self._endings.start(self._end(engine, backend), "scaling")

    async def _end(self, engine: _Engine, backend: Backend | None) -> None:
        """Stop an engine. Nothing cancels this step, so the gateway waits for it."""
        if backend is not None:
            with surviving("scaling"):
                await backend.aclose()
        await engine.stop()
        del self._engines[engine.name]

    async def _ready(self, engine: _Engine, backend: Backend) -> bool:
        """Wait until an engine answers its probe. False if it ends before, or takes too long."""
        until = time.monotonic() + max(_LEAST_START_S, _STARTS * engine.pool.cold_start_s)
        while engine.exit_code is None and time.monotonic() < until:
            try:
                async with asyncio.timeout(self._gateway.config.probes.timeout_s):
                    if await backend.probe():
                        return True
            except (UpstreamError, TimeoutError):
                pass
            await asyncio.sleep(_LOOK_S)
        return False

    async def _join(self, engine: _Engine, instance: InstanceConfig) -> bool:
        """Add an engine to the fleet. False if an engine of another replica, which decides now, has taken its name, and if
        the fleet file has it no more."""
        name = engine.pool.name
        while engine.fits(
            next((one for one in self._gateway.config.scaling.pools if one.name == name), None)
        ):
            if await self._edit(adding(instance)):
                engine.joined = True
                return True
            other = self._gateway.config.instance(engine.name)
            if other is not None and other.url != instance.url:
                return False
            await asyncio.sleep(_AGAIN_S)
        return False

    async def _serve(self, engine: _Engine, instance: InstanceConfig) -> bool:
        """Wait until an engine has left the fleet; False if it has ended before. A reload of the fleet file drops it from
        the fleet: it joins again."""
        changes = self._gateway.changes
        reloads = changes.overlay.reloads
        while engine.exit_code is None and not self._closing:
            if self._gateway.config.instance(engine.name) is None:
                if changes.overlay.reloads == reloads:
                    return True
                reloads = changes.overlay.reloads
                if not await self._join(engine, instance):
                    return True
            await asyncio.sleep(_LOOK_S)
        return engine.exit_code is None

    async def _idle(self, engine: _Engine, backend: Backend) -> None:
        """Wait until an engine that has left the fleet reports no request, at most for the time limit of a request."""
        until = time.monotonic() + self._gateway.config.limits.request_timeout_s
        while engine.exit_code is None and time.monotonic() < until:
            try:
                async with asyncio.timeout(self._gateway.config.probes.timeout_s):
                    report = await backend.load()
            except (UpstreamError, TimeoutError):
                return
            if not report.running and not report.waiting:
                return
            await asyncio.sleep(_LOOK_S)

    def _failed(self, engine: _Engine) -> None:
        pool = engine.pool.name
        # Engines that crash together double the pause once: each doubles the one of its start.
        pause_s = max(_FIRST_PAUSE_S, self._pauses_s.get(pool, 0.0), 2 * engine.pause_s)
        pause_s = self._pauses_s[pool] = min(_LONGEST_PAUSE_S, pause_s)
        self._not_before[pool] = time.monotonic() + pause_s
        asyncio.get_running_loop().call_later(pause_s, self.on_change)
        how = "is not ready" if engine.exit_code is None else f"ended with code {engine.exit_code}"
        logger.error(
            "engine %s %s; the next one starts after %g s at the earliest", engine.name, how, pause_s
        )

    # --- the fleet -------------------------------------------------------------------------------------
    async def _until_made(self, edit: Edit) -> None:
        while not await self._edit(edit):  # noqa: ASYNC110 (rare: the shared state is away)
            await asyncio.sleep(_AGAIN_S)

    def _without_secrets(self, pool: PoolConfig) -> dict[str, str]:
        """The gateway's environment, without the secrets that the fleet file names. It keeps those of the pool itself."""
        config = self._gateway.config
        secrets = {"HEADWAY_ADMIN_KEY", *(name for _, name in named(config) if isinstance(name, Variable))}
        secrets -= {each.name for each in named(pool.instance)}
        kept = {name: value for name, value in self._environment.items() if name not in secrets}
        # Last, so that `headway` is found where it is not installed for all.
        kept["PATH"] = os.pathsep.join(filter(None, (kept.get("PATH"), str(Path(sys.executable).parent))))
        return kept

    async def aclose(self) -> None:
        """Take the engines out of the fleet, and end them when other replicas' streams there have ended."""
        self._closing = True
        for engine in list(self._engines.values()):
            if engine.starts:
                await self._give_up(engine)
            elif not engine.ending:
                await self._edit(removing(engine.name))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._tasks.finish()
        await self._tasks.stop()
        await self._endings.finish()


def _is_engine(name: str, pool: PoolConfig) -> bool:
    """Whether an instance has the name of an engine of this pool."""
    return re.fullmatch(rf"{re.escape(pool.name)}-\d+", name) is not None
