"""One process of the gateway, from its start to the end of its drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable

from router.background import Tasks
from router.config import ConfigError, FleetConfig, InstanceConfig
from router.core.errors import Refusal
from router.gateway.asgi import Application
from router.gateway.endpoints import ROUTES
from router.gateway.http.server import GatewayServer
from router.gateway.judge import hot_paths
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import Page
from router.listening import raise_open_files, url_of
from router.process_memory import keep_freed_memory, use_huge_pages
from router.wiring import open_gateway

logger = logging.getLogger("headway")

#: After SIGTERM, open streams may continue for this long.
DRAIN_S = 30.0


class Process:
    """A serving gateway, as signals and a supervisor control it."""

    def __init__(self, gateway: Gateway, server: GatewayServer) -> None:
        self.gateway = gateway
        self._server = server
        self._tasks = Tasks()

    def stop(self) -> None:
        """Drain, then stop; a second call stops at once."""
        if self.gateway.draining:
            self.end()
        else:
            self.drain()

    def drain(self) -> None:
        """Drain, then stop."""
        if not self.gateway.draining:
            self.gateway.draining = True  # the next signal may be handled in this turn of the event loop
            self._tasks.start(self._drain(), "drain")

    def end(self) -> None:
        """Stop at once."""
        self.drain()
        self._server.should_exit = self._server.force_exit = True
        for task in list(self._server.server_state.tasks):
            task.cancel()

    def hang_up(self) -> None:
        """Read the fleet file again."""
        self._tasks.start(self.reload(), "reload")

    async def reload(self) -> bool:
        """Read the fleet file again and apply it. Whether the other replicas must still be made to: they do so by
        themselves, and not for an invalid file, unless the shared state does not answer."""
        try:
            return not await self.gateway.changes.reload()
        except (ConfigError, Refusal) as error:
            logger.error("the fleet file is not applied: %s", error)
            return False

    async def _drain(self) -> None:
        """End what no client waits for, wait for the open requests, then stop the server."""
        await self.gateway.tasks.stop()
        loop = asyncio.get_running_loop()
        until = loop.time() + DRAIN_S
        while self.gateway.runner.scheduler.live and loop.time() < until:  # noqa: ASYNC110 (once in a life)
            await asyncio.sleep(0.05)
        self._server.should_exit = True


async def run_gateway(
    config: FleetConfig,
    listener: socket.socket,
    *,
    on_ready: Callable[[str], None],
    reload: Callable[[], FleetConfig] | None = None,
    on_open: Callable[[Process], None] | None = None,
    engine_url: Callable[[InstanceConfig], Awaitable[str]] | None = None,
    scrape: Callable[[], Awaitable[Page]] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain. `reload` reads the fleet file again (SIGHUP); without it SIGHUP stops
    too, as when a terminal is closed. `on_ready` is called with the base URL when the gateway accepts connections.

    One of several workers passes `on_open`, which is called when the gateway is about to serve; `engine_url`, which
    returns the URL of an emulated engine of all workers; and `scrape`, which returns the metrics of all workers.

    Raises ConfigError or StoreError if the fleet cannot be served.
    """
    loop = asyncio.get_running_loop()
    async with open_gateway(config, reload=reload, engine_url=engine_url) as gateway:

        async def started() -> None:
            gateway.stalls.start()  # a stall before delays no request
            # uvicorn accepts connections right after the lifespan's start.
            loop.call_soon(on_ready, url_of(listener))

        app = Application(gateway, started, scrape)
        raise_open_files()
        server = GatewayServer(app, lambda: gateway.config, ROUTES, hot_paths(gateway), grace_s=2.0)
        gateway.connections = lambda: (server.connections, server.closed)
        process = Process(gateway, server)
        if on_open is None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, process.stop)
        else:  # SIGTERM may come twice: from the supervisor, and from a service manager, which signals all processes
            loop.add_signal_handler(signal.SIGTERM, process.drain)
            loop.add_signal_handler(signal.SIGINT, process.end)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, process.hang_up)
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
            loop.add_signal_handler(signal.SIGHUP, process.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # `router.cli` has blocked it
        if on_open is not None:
            on_open(process)
        gc.collect()
        keep_freed_memory()
        use_huge_pages()
        gc.freeze()  # the objects so far stay, so the collector skips them
        gc.set_threshold(50_000, 20, 100)  # requests leave few cycles, so rare collections are cheaper
        await server.serve(sockets=[listener])
        # The event loop no longer handles SIGHUP from here on, so the signal would end the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        gateway.draining = True
