"""`headway serve`: runs the gateway over a fleet file until a signal stops it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from router.config import ConfigError, FleetConfig, Problem, located
from router.fleet_file import FleetFile
from router.listening import listen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FLEET", help="the fleet file (YAML)")
    parser.add_argument("--host", help="address to listen on, instead of the file's")
    parser.add_argument("--port", type=int, help="port to listen on, instead of the file's")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="the least severe level that is logged (default info)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve a fleet file; returns the exit code."""
    file = FleetFile(args.config, args.host, args.port, args.log_level)
    config = file.read()
    file.log(config)

    def on_ready(url: str) -> None:
        print(f"Headway listens on {url}", flush=True)

    try:
        if config.server.workers == 1:
            return serve(config, reload=file.read, on_ready=on_ready)
        from router.supervisor import supervise  # here, because a single process does not need it

        return supervise(config, file, on_ready=on_ready)
    except ConfigError as error:
        raise located(error, args.config) from None


def serve(
    config: FleetConfig,
    *,
    on_ready: Callable[[str], None],
    reload: Callable[[], FleetConfig] | None = None,
) -> int:
    """Serve in this process until SIGINT or SIGTERM; returns the exit code. `reload` reads the fleet file again (SIGHUP).

    Raises ConfigError if the fleet cannot be served (for example: the port is in use, the store cannot be written).
    """
    # Here, because a supervisor serves nothing itself and does not need these imports.
    import uvloop

    from router.process import run_gateway
    from router.store.database import StoreError

    with listen(config.server.host, config.server.port) as listener:
        try:
            uvloop.run(run_gateway(config, listener, reload=reload, on_ready=on_ready))
        except StoreError as error:
            raise ConfigError("store", [Problem(("url",), str(error))]) from error
    return 0
