"""`python -m benchmarks.overhead.counts`: counts what the hot path does for each request, chunk and decision.

`counts.json` holds them for one Python version, with native kernels. A test fails when one of them rises. A change that lowers
one writes the file anew (`--write`), and so does a change that has a reason to raise one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import uvloop
import yaml

from benchmarks.overhead import wire
from benchmarks.overhead.counting import Counter, Counts
from benchmarks.overhead.micro import SLO, SchedulerBench
from benchmarks.overhead.processes import Target, fleet_of
from benchmarks.overhead.scale import KEY, add_key
from benchmarks.scenarios import Scenario, load_scenario
from benchmarks.simulator import Fleet, arrivals, open_fleet, simulate
from predictors.learned.models import load_models
from router.config import FleetConfig, loads
from router.gateway.asgi import Application
from router.gateway.endpoints import ROUTES
from router.gateway.http.server import GatewayServer
from router.gateway.judge import hot_paths
from router.wiring import open_gateway

FILE = Path(__file__).with_name("counts.json")
#: Requests and streams that are counted. The least of them is taken: it has no share of what runs in the background.
_REQUESTS, _STREAMS = 80, 20
#: After an answer's last byte the gateway has so long to finish its request.
_AFTER_S = 0.004
_CHUNKS = (8, 40)
_SIMULATED = (100, 200)


def _decisions(counter: Counter) -> Iterator[tuple[str, Counts]]:
    """One decision among 16 candidates, and one simulated request, learning included."""
    bench = SchedulerBench("slo", 16, SLO, load_models())
    yield "decision", counter.count(bench.dispatch)
    scenario = load_scenario("mixed-fleet", small=True)
    fleet = open_fleet(scenario.fleet)
    few, many = (_simulated(counter, scenario, fleet, requests) for requests in _SIMULATED)
    yield "simulated_request", _each(few, many, _SIMULATED)


def _simulated(counter: Counter, scenario: Scenario, fleet: Fleet, requests: int) -> Counts:
    _, workload = scenario.requests(1, {})
    found = list(arrivals(workload[:requests], fleet, policy="latency"))
    return counter.count(lambda: simulate(fleet, found, seed=1), repeats=1)


def _each(few: Counts, many: Counts, sizes: tuple[int, int]) -> Counts:
    """What each one more costs, when so `many` cost more than so `few`."""
    return Counts(*((more - less) / (sizes[1] - sizes[0]) for less, more in zip(few, many, strict=True)))


# --- through a gateway -----------------------------------------------------------------------------------
def _requests(counter: Counter) -> dict[str, Counts]:
    """Without a key, and under one with limits and a budget in memory."""
    return _served(counter, None) | _served(counter, KEY)


def _served(counter: Counter, key: str | None) -> dict[str, Counts]:
    """A gateway in this thread's event loop; its engine and its client in others. The engine sends an event when the
    client has the one before, so the gateway reads each by itself."""
    engine = _Engine()
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    try:
        with TemporaryDirectory(prefix="headway-counts-") as folder, socket.socket() as listener:
            target = Target((engine.server_port,))
            fleet = {**fleet_of(target, Path(folder)), "probes": {"interval_s": 3600}}
            if key is not None:
                add_key(fleet)
            client = _Client(counter, engine, key)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            uvloop.run(_serve(loads(yaml.safe_dump(fleet)), listener, client))
            return client.result()
    finally:
        engine.shutdown()


async def _serve(config: FleetConfig, listener: socket.socket, client: _Client) -> None:
    """Serve until the client is done."""

    async def started() -> None:
        client.begin(server, listener.getsockname()[1])

    async with open_gateway(config) as gateway:
        app = Application(gateway, started)
        server = GatewayServer(app, lambda: gateway.config, ROUTES, hot_paths(gateway), grace_s=1.0)
        await server.serve(sockets=[listener])


class _Engine(ThreadingHTTPServer):
    """An engine that streams. `next` lets the next event of a paced stream go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.next = threading.Semaphore(0)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Engine

    def do_GET(self) -> None:
        self.wfile.write(wire.answer("text/plain", b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        _, chunks, pace_us, usage = wire.wanted(body)
        event = wire.content_chunk(1)
        if not pace_us:
            end = event * chunks + wire.closing(chunks, usage)
            self.wfile.write(wire.STREAM_HEAD + wire.opening() + end)
            return
        self.wfile.write(wire.STREAM_HEAD + wire.opening() + event)
        for _ in range(1, chunks):
            self.server.next.acquire()
            self.wfile.write(event)
        self.server.next.acquire()
        self.wfile.write(wire.closing(chunks, usage))

    def log_message(self, *_: object) -> None:
        pass


class _Client:
    """Sends requests one after another from a thread, and has the gateway's thread count meanwhile."""

    def __init__(self, counter: Counter, engine: _Engine, key: str | None) -> None:
        self._counter = counter
        self._engine = engine
        self._key = key
        self._running: Future[dict[str, Counts]] | None = None

    def begin(self, server: GatewayServer, port: int) -> None:
        """Called in the gateway's event loop when it serves."""
        loop = asyncio.get_running_loop()
        self._running = ThreadPoolExecutor(1).submit(self._run, loop, server, port)

    def result(self) -> dict[str, Counts]:
        return {} if self._running is None else self._running.result()

    def _run(self, loop: asyncio.AbstractEventLoop, server: GatewayServer, port: int) -> dict[str, Counts]:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30.0) as connection:
                request = wire.request(port, stream=False, chunks=16, key=self._key)
                json = self._least(loop, connection, request, _REQUESTS)
                if self._key is not None:
                    return {"metered_request": json}
                streams = [wire.request(port, stream=True, chunks=n, pace_us=1) for n in _CHUNKS]
                few, many = (self._least(loop, connection, stream, _STREAMS) for stream in streams)
                return {"json_request": json, "streamed_chunk": _each(few, many, _CHUNKS)}
        finally:
            server.should_exit = True

    def _least(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, request: bytes, repeats: int
    ) -> Counts:
        for _ in range(repeats):  # until everything is warm
            self._exchange(connection, request)
        found: list[int] = []
        for allocations in (False, True):
            counts = []
            for _ in range(repeats):
                _in_loop(loop, partial(self._counter.start, allocations=allocations))
                self._exchange(connection, request)
                time.sleep(_AFTER_S)
                counts.append(_in_loop(loop, partial(self._counter.stop, allocations=allocations)))
            found += [min(column) for column in zip(*counts, strict=True)]
        return Counts(*found)

    def _exchange(self, connection: socket.socket, request: bytes) -> None:
        """Send a request and read its whole answer."""
        connection.sendall(request)
        answer = connection.recv(65536)
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway answered {answer[:200]!r}")
        if b"chunked" in head:
            released = 0
            while not body.endswith(wire.LAST_CHUNK):
                while released < body.count(b"data: ") - 1:  # the first event has no content
                    self._engine.next.release()
                    released += 1
                body += connection.recv(65536)
            while self._engine.next.acquire(blocking=False):  # what was released for the closing events
                pass
            return
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < size:
            body += connection.recv(65536)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> Any:
    """Call something in the thread of an event loop."""
    done: Future[Any] = Future()
    loop.call_soon_threadsafe(lambda: done.set_result(call()))
    return done.result(30.0)


#: By name, what counts some of the steps.
PARTS: dict[str, Callable[[Counter], dict[str, Counts]]] = {
    "decisions": lambda counter: dict(_decisions(counter)),
    "requests": _requests,
}


# --- the command -----------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.counts", description=__doc__)
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), help="count these only")
    parser.add_argument("--write", action="store_true", help=f"write them to {FILE.name}")
    options = parser.parse_args(arguments)
    if options.write and options.part:
        parser.error("--write needs all parts")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what is counted
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.overhead.counts", *sys.argv[1:]])  # noqa: S606
    counter = Counter()
    parts = [PARTS[options.part]] if options.part else list(PARTS.values())
    found = {step: counts._asdict() for part in parts for step, counts in part(counter).items()}
    text = orjson.dumps({"python": python(), "steps": found}, option=orjson.OPT_INDENT_2)
    if options.write:
        FILE.write_bytes(text + b"\n")
    print(text.decode())
    return 0


def python() -> str:
    """The interpreter whose counts these are."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


if __name__ == "__main__":
    sys.exit(main())
