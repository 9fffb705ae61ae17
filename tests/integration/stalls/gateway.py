"""A gateway of its own process, over emulated engines in another, that tells how long its event loop was held.

    python -m tests.integration.stalls.gateway FLEET

A first line on standard output tells the URL; each line on standard input is answered with a JSON line: the longest
stall since the one before (`stall_s`: wall time; `busy_s`: of it, processor time of this process), and what was logged
as an error. The end of standard input ends it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from pathlib import Path

import uvloop

from router.config import loads
from router.gateway.asgi import Application
from router.gateway.endpoints import ROUTES, HotPaths
from router.gateway.http.server import GatewayServer
from router.listening import listen
from router.process_memory import keep_freed_memory
from router.wiring import open_gateway
from tests.longest_stall import LongestStall


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(name)s %(message)s").format(record)[-2000:])


async def main(path: Path) -> None:
    errors = _Errors()
    logging.basicConfig(level=logging.WARNING, handlers=[errors])
    config = loads(path.read_text(encoding="utf-8"), str(path))
    loop = asyncio.get_running_loop()
    keep_freed_memory()
    async with open_gateway(config, environment={}, seed=0) as gateway:
        listener = listen("127.0.0.1", 0)
        app, handler = Application(gateway), HotPaths(gateway)
        server = GatewayServer(app, lambda: gateway.config, ROUTES, handler, grace_s=1.0)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # as `router.process` does
        watch = LongestStall(interval_s=0.001)
        watch.start()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while await reader.readline():
            told = {"stall_s": watch.longest_s, "busy_s": watch.longest_busy_s, "errors": errors.lines}
            print(json.dumps(told), flush=True)
            errors.lines = []
            watch.reset()
        watch.stop()
        pipe.close()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
