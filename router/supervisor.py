"""The supervisor of a gateway with several workers on one port.

It serves no requests itself. It holds the port, runs the fleet's emulated engines, and starts each worker as a new process
(`router.worker`) with a link to it. It restarts a worker that dies, and forwards what concerns all workers: signals,
changes of the fleet, and requests for metrics.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from router.background import Tasks, surviving
from router.config import ConfigError, FleetConfig, InstanceConfig, Problem
from router.emulated import EmulatedEngines
from router.fleet_file import FleetFile, dump
from router.link import Link, LinkError
from router.listening import hold, url_of

logger = logging.getLogger("headway")

#: Back-off of restarts: the pause starts at the first value and doubles up to the longest. After `STEADY_S` of uptime the
#: back-off resets.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
#: Workers that have not ended after this time are killed: after the start of a drain (which takes at most 30 s), and after
#: a second stop signal.
DRAIN_LIMIT_S = 45.0
END_LIMIT_S = 5.0
#: Time limit for an answer that a worker can give at once.
ANSWER_TIMEOUT_S = 2.0


def supervise(config: FleetConfig, file: FleetFile, *, on_ready: Callable[[str], None]) -> int:
    """Serve with `config.server.workers` processes until SIGINT or SIGTERM; returns the exit code. `on_ready` is called
    with the base URL when all of them accept connections.

    Raises ConfigError if the fleet cannot be served.
    """
    import uvloop

    with hold(config.server.host, config.server.port) as holder:
        port = holder.getsockname()[1]
        file = FleetFile(file.path, config.server.host, port, file.log_level)
        config = config.model_copy(update={"server": config.server.model_copy(update={"port": port})})
        return uvloop.run(Supervisor(config, file, partial(on_ready, url_of(holder))).run())


class _Slot:
    """The slot of one worker, kept across its restarts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.ready = False
        self.failure: ConfigError | None = None  # why the last start failed
        self.restarts = 0

    def signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Runs the workers of one gateway."""

    def __init__(self, config: FleetConfig, file: FleetFile, on_ready: Callable[[], None]) -> None:
        self._fleet = config  # the last known fleet, with which a worker starts
        self._file = file
        self._on_ready = on_ready
        self._slots = [_Slot(number) for number in range(config.server.workers)]
        self._engines = EmulatedEngines()
        self._tasks = Tasks()
        self._stopping = asyncio.Event()
        self._serving = False  # all workers have accepted connections once
        self._failed: int | None = None  # the exit code of a failed start

    async def run(self) -> int:
        """Run until all workers have ended; returns the exit code. Raises ConfigError if they cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.hang_up)
        async with self._engines:
            await self._engines.start([each for each in self._fleet.instances if each.is_emulated])
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep(slot), name=f"worker {slot.number}")
            # The event loop no longer handles SIGHUP from here on, so the signal would end the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        if self._failed is None:
            return 0
        for slot in self._slots:
            if slot.failure is not None:
                raise slot.failure
        return 1

    def stop(self) -> None:
        """Make all workers drain and stop; a second call stops them at once."""
        again = self._stopping.is_set()
        limit_s = END_LIMIT_S if again else DRAIN_LIMIT_S
        self._stopping.set()
        for slot in self._slots:  # a second SIGTERM would be lost if the worker has not yet handled the first
            slot.signal(signal.SIGINT if again else signal.SIGTERM)
        asyncio.get_running_loop().call_later(limit_s, self._kill)

    def _kill(self) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.returncode is None:
                logger.error("worker %d does not stop: it is killed", slot.number)
                slot.signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Make all workers read the fleet file again."""
        self._tasks.start(self._reload(), "reload")

    async def _reload(self) -> None:
        """Make one worker reload: it sends the fleet to the others through the shared state. If the shared state does not
        answer, every worker must reload."""
        for slot in sorted(self._slots, key=lambda each: not each.ready):
            if slot.link is None:
                continue
            try:
                others_too = await slot.link.request("reload")
            except LinkError:
                continue  # try the next one
            if not others_too:
                return

    async def _newest_fleet(self) -> dict[str, Any]:
        """The fleet that the other workers use. They may have reloaded it since the start, and the file may have changed
        since then."""
        for slot in self._slots:
            if slot.link is not None and slot.ready:
                with suppress(LinkError, TimeoutError):
                    self._fleet = FleetConfig.model_validate(
                        await slot.link.request("fleet", timeout_s=ANSWER_TIMEOUT_S)
                    )
                    break
        return dump(self._fleet)

    # --- one worker ----------------------------------------------------------------------------------
    async def _keep(self, slot: _Slot) -> None:
        """Run one worker, and restart it until the gateway stops."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = loop.time()
            code = 1
            with surviving("supervisor"):
                code = await self._run(slot)
            if self._stopping.is_set():
                return
            how = f"exit code {code}" if slot.failure is None else str(slot.failure)
            killed = code < 0 and not slot.restarts
            if not self._serving and not killed:  # if one worker fails to start, the gateway does not start
                if slot.failure is None:
                    logger.error("worker %d did not start: %s", slot.number, how)
                self._failed = code
                self.stop()
                return
            if loop.time() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            logger.error("worker %d has ended (%s): it restarts in %g s", slot.number, how, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            slot.restarts += 1

    async def _run(self, slot: _Slot) -> int:
        """Run one worker process until it ends. Returns its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        slot.failure = None
        with theirs:
            slot.link = link = await Link.open(ours, partial(self._answer, slot))
            try:
                slot.process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "router.worker",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C must reach only the supervisor, which makes the workers drain
                )
            except OSError as error:
                logger.error("no process can be started: %s", error.strerror)
                slot.link = None
                await link.aclose()
                return 1
        try:
            if self._stopping.is_set():
                slot.signal(signal.SIGTERM)
            code = await slot.process.wait()
            await link.ended()  # its last messages have been read
            return code
        finally:
            slot.ready = False
            slot.process = slot.link = None
            await link.aclose()

    async def _answer(self, slot: _Slot, what: str, content: Any) -> Any:
        """Handle a worker's request."""
        match what:
            case "begin":
                fleet = await self._newest_fleet()
                return {"number": slot.number, "file": asdict(self._file), "fleet": fleet}
            case "ready":
                self._ready(slot)
            case "failed":
                source, problems = content
                slot.failure = ConfigError(
                    source, [Problem(tuple(path), reason, line) for path, reason, line in problems]
                )
            case "url":
                try:
                    return await self._engines.url(InstanceConfig.model_validate(content))
                except ConfigError as error:
                    raise LinkError("; ".join(problem.reason for problem in error.problems)) from error
            case "scrape":
                return await self._scrape(slot)
            case _:
                raise LinkError(f"the supervisor does not know {what!r}")
        return None

    def _ready(self, slot: _Slot) -> None:
        slot.ready = True
        if not self._serving and all(each.ready for each in self._slots):
            self._serving = True
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # `router.cli` has blocked it
            self._on_ready()

    async def _scrape(self, asking: _Slot) -> dict[str, Any]:
        """The metrics pages of the other workers that answer in time. `workers` has of each worker its number, whether its
        metrics are there, and how often it was restarted."""

        async def page(slot: _Slot) -> tuple[int, Any] | None:
            if slot.link is None or not slot.ready:
                return None
            try:
                return slot.number, await slot.link.request("scrape", timeout_s=ANSWER_TIMEOUT_S)
            except (LinkError, TimeoutError):
                return None

        others = [slot for slot in self._slots if slot is not asking]
        pages = [found for found in await asyncio.gather(*map(page, others)) if found is not None]
        answering = {asking.number, *(number for number, _ in pages)}
        workers = [(slot.number, slot.number in answering, slot.restarts) for slot in self._slots]
        return {"pages": [page for _, page in pages], "workers": workers}
