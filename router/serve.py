"""`headway serve`: run the gateway over a fleet file until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import policies
from backends.engine import profiles
from router.config import ConfigError, FleetConfig, Problem, load
from router.gateway.api import Api
from router.gateway.control import create_app
from router.gateway.server import GatewayServer, server_config
from router.gateway.service import Gateway
from router.store.database import StoreError
from router.wiring import open_gateway

logger = logging.getLogger("headway")

#: After SIGTERM streams may go on for this long.
DRAIN_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headway serve`."""
    parser.add_argument("--config", required=True, metavar="FLEET", help="the fleet file (YAML)")
    parser.add_argument("--host", help="address to listen on, in place of the file's")
    parser.add_argument("--port", type=int, help="port to listen on, in place of the file's")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(args: argparse.Namespace) -> int:
    """Serve a fleet file; the exit code."""
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def read() -> FleetConfig:
        config = load(args.config, policies=tuple(policies.POLICIES), profiles=profiles.names())
        update = {name: value for name in ("host", "port") if (value := getattr(args, name)) is not None}
        return config.model_copy(update={"server": config.server.model_copy(update=update)})

    return serve(read(), reload=read, on_ready=lambda url: print(f"Headway listens on {url}", flush=True))


def serve(
    config: FleetConfig,
    *,
    reload: Callable[[], FleetConfig] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. `reload` reads the fleet file again (SIGHUP).

    Raises ConfigError when the fleet cannot be served (a port taken, a store that cannot be written).
    """
    listener = listen(config.server.host, config.server.port)
    try:
        import uvloop

        return uvloop.run(_serve(config, listener, reload, on_ready))
    except StoreError as error:
        raise ConfigError("store", [Problem(("url",), str(error))]) from error
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ConfigError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # who connects before the server runs waits for it
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("server", [Problem((), f"cannot listen on {host}:{port}: {reason}")]) from error
    listener.setblocking(False)
    return listener


async def _serve(
    config: FleetConfig,
    listener: socket.socket,
    reload: Callable[[], FleetConfig] | None,
    on_ready: Callable[[str], None] | None,
) -> int:
    loop = asyncio.get_running_loop()
    async with open_gateway(config, reload=reload) as gateway:
        _warn(config)

        async def started() -> None:
            # Reported once uvicorn accepts connections, which is right after the lifespan's start.
            loop.call_soon(_ready, listener, on_ready)

        app = Api(gateway, create_app(gateway, started))
        server = GatewayServer(server_config(app, config.server.host, config.server.port, grace_s=2.0))
        tasks: set[asyncio.Task[Any]] = set()

        def stop() -> None:
            if gateway.draining:
                server.should_exit = server.force_exit = True
                for task in list(server.server_state.tasks):
                    task.cancel()
            else:
                tasks.add(asyncio.create_task(_drain(gateway, server), name="drain"))

        def hang_up() -> None:
            tasks.add(asyncio.create_task(_reload(gateway), name="reload"))

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        gc.collect()
        gc.freeze()  # what is here now stays; the collector need not look at it again
        gc.set_threshold(50_000, 20, 100)  # requests leave few cycles behind: looking rarely is cheaper
        await server.serve(sockets=[listener])
        gateway.draining = True
    return 0


def _ready(listener: socket.socket, on_ready: Callable[[str], None] | None) -> None:
    host, port = listener.getsockname()[:2]
    if on_ready is not None:
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")


async def _drain(gateway: Gateway, server: GatewayServer) -> None:
    """Take nothing new, let what is under way end, then stop the server."""
    gateway.draining = True
    loop = asyncio.get_running_loop()
    until = loop.time() + DRAIN_S
    while gateway.runner.scheduler.live and loop.time() < until:  # noqa: ASYNC110 (once in a life)
        await asyncio.sleep(0.05)
    server.should_exit = True


async def _reload(gateway: Gateway) -> None:
    try:
        await gateway.reload()
    except ConfigError as error:
        logger.error("the fleet file is not applied: %s", error)
    else:
        logger.info("the fleet file is applied")


def _warn(config: FleetConfig) -> None:
    """Say what an operator should not learn by accident."""
    if not config.auth.keys:
        logger.warning("no keys are configured: anyone who reaches the port may use the models")
