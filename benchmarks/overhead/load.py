"""`python -m benchmarks.overhead.load`: the load generator. A `Plan` on stdin, a `Result` on stdout.

Raw protocol connections on uvloop: one request on each at a time, kept alive. Answers are checked: a status
of 200, all the requested content events, the end mark.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

import httptools
import orjson
import uvloop

from backends.sse_events import END
from benchmarks.overhead import usage, wire
from benchmarks.overhead.plan import PLANS, Plan, Result, Spread

#: Beyond an answer's own length, so long may it take to come to its end.
_PATIENCE_S = 5.0
_RECONNECT_S = 0.02


class Client(asyncio.Protocol):
    """One connection and the answer that is arriving on it."""

    def __init__(self, load: Load, port: int) -> None:
        self.port = port
        self.busy = False
        self.chunks = 0
        self._load = load
        self._plan = load.plan
        self._request = load.requests[port]
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._from_ns = 0  # what latency counts from
        self._measured = False
        self._now_ns = 0
        self._rest = b""  # of an event that is not whole yet
        self._ended = False

    def begin(self, from_ns: int | None = None) -> None:
        """Send a request; latency counts from `from_ns`, else from now."""
        load = self._load
        if self._transport is None:
            return  # it has just been closed; the connection that replaces it asks
        now_ns = time.monotonic_ns()
        self._from_ns = now_ns if from_ns is None else from_ns
        self._measured = load.measuring
        if from_ns is not None and load.measuring:
            load.lags_ns.append(now_ns - from_ns)
        self.busy = True
        self.chunks = 0
        self._ended = False
        self._rest = b""
        load.started += 1
        self._transport.write(self._request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- what the transport calls
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own, no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._load.lost(self, "connection lost" if self.busy else None)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    # --- what the parser calls
    def on_body(self, data: bytes) -> None:
        if not self._plan.stream:
            return
        if self._rest:
            data = self._rest + data
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self._rest = data
            return
        self._rest = data[end:]
        load = self._load
        stamps = wire.STAMP.findall(data, 0, end)
        if stamps:
            now_ns = self._now_ns
            if not self.chunks:
                load.begun += 1
                if self._measured:
                    load.ttfts_ns.append(now_ns - self._from_ns)
            self.chunks += len(stamps)
            if load.measuring:
                load.chunks += len(stamps)
                for stamp in stamps:
                    load.relays_ns.append(now_ns - int(stamp))
        if data.endswith(END, 0, end):
            self._ended = True

    def on_message_complete(self) -> None:
        if not self.busy:
            return
        status = self._parser.get_status_code()
        whole = not self._plan.stream or (self._ended and self.chunks == self._plan.chunks)
        self.busy = False
        if status != 200:
            self._load.failed(f"status {status}")
        elif not whole:
            self._load.failed("incomplete stream")
        else:
            self._load.completed += 1
            if self._load.measuring:
                self._load.answers += 1
                if self._measured:
                    self._load.latencies_ns.append(self._now_ns - self._from_ns)
        self._load.free(self)


class Load:
    """All connections of one run, and what they have counted."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.measuring = False
        self.answers = self.chunks = self.started = self.completed = self.begun = 0
        self.latencies_ns, self.ttfts_ns, self.relays_ns, self.lags_ns = (array("q") for _ in range(4))
        self._errors: Counter[str] = Counter()
        self._stopping = False
        self._clients: set[Client] = set()
        self._idle: list[Client] = []  # in open loop
        self._due_ns: deque[int] = deque()  # requests that found no idle connection
        self.requests = {
            port: wire.request(
                port, stream=plan.stream, chunks=plan.chunks, pace_us=plan.pace_us, key=plan.key
            )
            for port in plan.ports
        }
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what clients tell
    def failed(self, kind: str) -> None:
        self._errors[kind] += 1

    def free(self, client: Client) -> None:
        """An answer has come to its end: the next request."""
        if self._stopping:
            return
        if self.plan.mode == "open":
            if self._due_ns:
                client.begin(self._due_ns.popleft())
            else:
                self._idle.append(client)
        elif self.plan.mode == "closed":
            client.begin()

    def lost(self, client: Client, error: str | None) -> None:
        """A connection has ended; another takes its place."""
        self._clients.discard(client)
        if client in self._idle:
            self._idle.remove(client)
        if error is not None:
            client.busy = False
            self.failed(error)
        if self._stopping:
            return
        task = self._loop.create_task(self._replace(client.port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, port: int) -> None:
        while not self._stopping:
            await asyncio.sleep(_RECONNECT_S)
            try:
                client = await self._connect(port)
            except OSError:
                self.failed("connection refused")
                self.started += 1  # what would have been asked on it
                continue
            self.free(client)
            return

    # --- the run
    async def run(self) -> Result:
        plan = self.plan
        for number in range(plan.connections):
            await self._connect(plan.ports[number % len(plan.ports)])
        pacer = None
        stop = threading.Event()
        if plan.mode == "open":
            self._idle = list(self._clients)
            pacer = threading.Thread(target=self._pace, args=(stop,), name="pacer", daemon=True)
            pacer.start()
        else:
            self._begin_all()
        try:
            result = await self._measure()
        finally:
            self._stopping = True
            stop.set()
            if pacer is not None:
                pacer.join()
            for client in list(self._clients):
                client.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.sleep(0)
        return result

    async def _connect(self, port: int) -> Client:
        _, client = await self._loop.create_connection(lambda: Client(self, port), "127.0.0.1", port)
        self._clients.add(client)
        return client

    def _begin_all(self) -> None:
        """Closed loop: the connections start spread over one answer's length; hold: a thousand a second."""
        held = self.plan.mode == "hold"
        spread_s = self.plan.connections / 1000 if held else min(self.plan.stream_s, 1.0)
        random = Random(1)
        for client in list(self._clients):
            self._loop.call_later(random.random() * spread_s, client.begin)

    def _pace(self, stop: threading.Event) -> None:
        """Open loop, in a thread of its own: uvloop's timers count in whole milliseconds."""
        gap_ns = round(1e9 / self.plan.rate_per_s)
        due_ns = time.monotonic_ns() + gap_ns
        while not stop.is_set():
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0 and stop.wait(left_ns / 1e9):
                return
            self._loop.call_soon_threadsafe(self._ask, due_ns)
            due_ns += gap_ns

    def _ask(self, due_ns: int) -> None:
        if self._stopping:
            return
        if self._idle:
            self._idle.pop().begin(due_ns)
        else:
            self._due_ns.append(due_ns)

    async def _measure(self) -> Result:
        plan, held = self.plan, 0
        if plan.mode == "hold":
            await self._until(lambda: self.begun >= plan.connections, plan.warmup_s + 4 * _PATIENCE_S, 0.02)
        figures = await self._window()
        if plan.mode == "hold":
            held = sum(client.busy and client.chunks > 0 for client in self._clients)
        else:
            self._stopping = True
            await self._until(lambda: not self._busy(), plan.stream_s + _PATIENCE_S, 0.005)
        never_sent = len(self._due_ns)
        return Result(
            **figures,
            answers=self.answers,
            chunks=self.chunks,
            started=self.started + never_sent,
            completed=self.completed,
            incomplete=never_sent + self._busy() - held,
            held=held,
            errors=dict(self._errors),
            latency=Spread.of_ns(self.latencies_ns.tolist()),
            ttft=Spread.of_ns(self.ttfts_ns.tolist()),
            relay=Spread.of_ns(self.relays_ns.tolist()),
            lag=Spread.of_ns(self.lags_ns.tolist()),
        )

    def _busy(self) -> int:
        return sum(client.busy for client in self._clients)

    async def _until(self, done: Callable[[], bool], longest_s: float, look_s: float) -> None:
        until = time.monotonic() + longest_s
        while not done() and time.monotonic() < until:  # noqa: ASYNC110 (once)
            await asyncio.sleep(look_s)

    async def _window(self) -> dict[str, Any]:
        """The measured window; what was used in it."""
        await asyncio.sleep(self.plan.warmup_s)
        began = _look(self.plan)
        self.measuring = True
        await asyncio.sleep(self.plan.duration_s)
        self.measuring = False
        return _used(self.plan, began)


def _look(plan: Plan) -> dict[str, float]:
    """Fields of `Result` that grow with time, and `machine_s`, what all cores have worked (NaN where that is not known)."""
    return {
        "window_s": time.monotonic(),
        "target_cpu_s": usage.cpu_s(plan.target_pids),
        "bench_cpu_s": usage.cpu_s(plan.bench_pids),
        "load_cpu_s": usage.cpu_s([os.getpid()]),
        "machine_s": math.nan if (busy_s := usage.machine_busy_s()) is None else busy_s,
    }


def _used(plan: Plan, began: dict[str, float]) -> dict[str, Any]:
    """Fields of `Result`: CPU since that look, and memory now."""
    found = {name: now - began[name] for name, now in _look(plan).items()}
    foreign_s = found.pop("machine_s") - found["target_cpu_s"] - found["bench_cpu_s"] - found["load_cpu_s"]
    pids = plan.target_pids
    return {
        **found,
        "foreign_cores": None if math.isnan(foreign_s) else max(0.0, foreign_s) / found["window_s"],
        **(usage.memory(pids) if pids else dict.fromkeys(("rss_mib", "pss_mib"))),
    }


async def run(plan: Plan) -> Result:
    """Run a plan in this process, on the running loop. Raises OSError if nobody listens."""
    return await Load(plan).run()


def main() -> int:
    plan = PLANS.validate_json(sys.stdin.buffer.read())
    gc.disable()
    try:
        result = uvloop.run(run(plan))
    except OSError as error:
        print(f"the load generator cannot connect: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(orjson.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
