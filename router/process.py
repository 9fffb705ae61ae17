"""One process of the gateway, from opening the fleet to the end of its drain."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from router.background import Tasks
from router.config import ConfigError, FleetConfig
from router.core.errors import Refusal
from router.emulated import Engines
from router.gateway.app import create_app
from router.gateway.endpoints import Api
from router.gateway.http.server import GatewayServer, server_config
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import Page
from router.listening import raise_open_files, url_of
from router.wiring import open_gateway

logger = logging.getLogger("headway")

#: After SIGTERM streams may go on for this long.
DRAIN_S = 30.0
#: glibc's numbers of two settings of malloc, and freed memory that is kept.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 256 * 1024 * 1024


class Place(Protocol):
    """What a process has from its supervisor where it is one of several."""

    @property
    def engines(self) -> Engines:
        """The emulated engines that all workers use."""
        ...

    async def scrape(self) -> Page:
        """The metrics of all workers as one page."""
        ...

    def opened(self, process: Process) -> None:
        """The gateway is open, and about to serve."""
        ...


class Process:
    """A gateway that serves: what signals and a supervisor do to it."""

    def __init__(self, gateway: Gateway, server: GatewayServer) -> None:
        self.gateway = gateway
        self._server = server
        self._tasks = Tasks()

    def stop(self) -> None:
        """Drain, then end; asked again, end at once."""
        if self.gateway.draining:
            self._server.should_exit = self._server.force_exit = True
            for task in list(self._server.server_state.tasks):
                task.cancel()
        else:
            self._tasks.start(self._drain(), "drain")

    def hang_up(self) -> None:
        """Read the fleet file again."""

        async def reload() -> None:
            await self.reload()

        self._tasks.start(reload(), "reload")

    async def reload(self) -> bool:
        """Read the fleet file again and apply it; whether it was good."""
        try:
            await self.gateway.changes.reload()
        except (ConfigError, Refusal) as error:
            logger.error("the fleet file is not applied: %s", error)
            return False
        return True

    async def _drain(self) -> None:
        """Take nothing new, let what is under way end, then stop the server."""
        self.gateway.draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + DRAIN_S
        while self.gateway.runner.scheduler.live and loop.time() < until:  # noqa: ASYNC110 (once in a life)
            await asyncio.sleep(0.05)
        self._server.should_exit = True


def keep_freed_memory() -> None:
    """Have glibc keep what large bodies have used. It gives blocks of 32 MiB back to the system at once, and each copy
    of a body then waits for 8192 pages to be made anew: 20 to 90 ms, in which the event loop is held. Kept ones take 5.
    Another C library does as it does."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


async def run_gateway(
    config: FleetConfig,
    listener: socket.socket,
    *,
    reload: Callable[[], FleetConfig] | None = None,
    on_ready: Callable[[str], None] | None = None,
    place: Place | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, draining then. `reload` reads the fleet file again (SIGHUP); `on_ready` is called
    with the base URL once connections are accepted. `place` is None for a gateway of one process.

    Raises ConfigError, StoreError when the fleet cannot be served.
    """
    loop = asyncio.get_running_loop()
    keep_freed_memory()
    async with open_gateway(
        config, reload=reload, engines=None if place is None else place.engines
    ) as gateway:

        def ready() -> None:
            if on_ready is not None:
                on_ready(url_of(listener))

        async def started() -> None:
            # Reported once uvicorn accepts connections, which is right after the lifespan's start.
            loop.call_soon(ready)

        scrape: Callable[[], Awaitable[Page]] | None = None if place is None else place.scrape
        app = Api(gateway, create_app(gateway, started, scrape))
        raise_open_files()
        server = GatewayServer(
            server_config(app, config.server.host, config.server.port, grace_s=2.0), lambda: gateway.config
        )
        gateway.metrics.sources.connections = lambda: (server.connections, server.closed)
        process = Process(gateway, server)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, process.stop)
        loop.add_signal_handler(signal.SIGHUP, process.hang_up)
        if place is not None:
            place.opened(process)
        gc.collect()
        gc.freeze()  # what is here now stays; the collector need not look at it again
        gc.set_threshold(50_000, 20, 100)  # requests leave few cycles behind: looking rarely is cheaper
        await server.serve(sockets=[listener])
        gateway.draining = True
