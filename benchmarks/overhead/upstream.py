"""`python -m benchmarks.overhead.upstream`: an engine of canned bytes that costs as little as Python allows.

Speaks as much of vLLM as a gateway needs. Each port is an instance of its own. It prints its ports as one line of JSON and ends when
its stdin closes. Paced streams are driven by one wheel that turns each millisecond, so hundreds of streams need one timer.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import httptools
import orjson
import uvloop

from benchmarks.overhead import wire

_TICK_NS = 1_000_000
_METRICS = (
    'vllm:num_requests_running{{engine="0"}} {running}\n'
    'vllm:num_requests_waiting{{engine="0"}} 0\n'
    'vllm:kv_cache_usage_perc{{engine="0"}} 0.1\n'
)


class Wheel:
    """Calls `Exchange.step` of every paced stream when it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list[Exchange]] = {}
        self._at = 0  # the last tick that was served
        self._turning = False

    def add(self, exchange: Exchange) -> None:
        """Serve `exchange` at its `due_ns`, or at the next turn if that has passed."""
        if not self._turning:
            self._turning = True
            self._at = time.monotonic_ns() // _TICK_NS
            self._loop.call_later(0.001, self._turn)
        tick = max(exchange.due_ns // _TICK_NS, self._at + 1)
        self._slots.setdefault(tick, []).append(exchange)

    def _turn(self) -> None:
        now = time.monotonic_ns() // _TICK_NS
        due = [self._slots.pop(tick) for tick in range(self._at + 1, now + 1) if tick in self._slots]
        self._at = max(self._at, now)
        for exchanges in due:
            for exchange in exchanges:
                exchange.step()
        if self._slots:
            self._loop.call_later(0.001, self._turn)
        else:
            self._turning = False


@dataclass(slots=True)
class Instance:
    """What the connections of one port share."""

    wheel: Wheel
    running: int = 0


class Exchange(asyncio.Protocol):
    """One connection: requests one after another."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body = b""
        self._left = 0  # content events still to be sent
        self._chunks = 0
        self._pace_ns = 0
        self._usage = False
        self.due_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own, no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._left:
            self._left = 0
            self._instance.running -= 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    # --- what the parser calls
    def on_message_begin(self) -> None:
        self._path = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, data: bytes) -> None:
        self._body = self._body + data if self._body else data

    def on_message_complete(self) -> None:
        if self._transport is None:
            return
        if self._path != wire.PATH.encode():
            self._transport.write(self._other())
            return
        stream, chunks, pace_us, usage = wire.wanted(self._body)
        if not stream:
            self._transport.write(wire.completion(chunks))
            return
        start = wire.STREAM_HEAD + wire.opening()
        now = time.monotonic_ns()
        if not pace_us:
            events = wire.chunk(wire.content_event(now) * chunks)
            self._transport.write(start + events + wire.closing(chunks, usage))
            return
        self._chunks, self._usage, self._pace_ns = chunks, usage, pace_us * 1000
        self._left = chunks
        self._instance.running += 1
        self.due_ns = now
        self.step(start)

    def step(self, start: bytes = b"") -> None:
        """Send the next content event; `start` goes before it."""
        if self._transport is None:
            return
        data = start + wire.content_chunk(time.monotonic_ns())
        self._left -= 1
        if self._left > 0:
            self._transport.write(data)
            self.due_ns += self._pace_ns
            self._instance.wheel.add(self)
        else:
            self._transport.write(data + wire.closing(self._chunks, self._usage))
            self._instance.running -= 1

    def _other(self) -> bytes:
        if self._path == b"/metrics":
            return wire.answer("text/plain", _METRICS.format(running=self._instance.running).encode())
        if self._path == b"/health":
            return wire.answer("text/plain", b"")
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


async def serve() -> None:
    """Serve two instances on free ports of 127.0.0.1 until stdin closes."""
    loop = asyncio.get_running_loop()
    wheel = Wheel(loop)
    servers = []
    for _ in range(2):
        instance = Instance(wheel)
        servers.append(
            await loop.create_server(lambda i=instance: Exchange(i), "127.0.0.1", 0, backlog=4096)  # type: ignore[misc]
        )
    bound = [server.sockets[0].getsockname()[1] for server in servers]
    print(orjson.dumps({"ports": bound}).decode(), flush=True)
    await until_stdin_closes(loop)
    for server in servers:
        server.close()


async def until_stdin_closes(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the parent to close our stdin, or to die."""
    reader = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with closing(pipe):
        await reader.read()


if __name__ == "__main__":
    gc.disable()
    uvloop.run(serve())
