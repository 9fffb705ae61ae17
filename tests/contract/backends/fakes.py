"""A small HTTP/1.1 server over raw streams, whose answers are scripted to the byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import orjson


@dataclass
class Exchange:
    """One request that came in, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    number: int  # requests seen by the server before this one
    on_connection: int  # requests seen on this connection before this one
    closed: bool = False

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, content_type: str = "text/event-stream", *extra: str) -> None:
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-type: {content_type}",
            *extra,
            "transfer-encoding: chunked",
        ]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.raw(head.encode() + body)

    async def begin(self, *events: bytes) -> None:
        """A stream's first events, a chunk each."""
        await self.head()
        for event in events:
            await self.chunk(event)

    async def events(self, *events: bytes) -> None:
        """A whole stream, one chunk an event."""
        await self.begin(*events)
        await self.end()

    async def hang(self, *events: bytes) -> None:
        """A stream that gets no further than these events."""
        await self.begin(*events)
        await asyncio.Event().wait()

    def drop(self) -> None:
        """Close the connection without another byte."""
        self.closed = True
        self.writer.transport.abort()

    def close(self) -> None:
        """Close the connection after what was written."""
        self.closed = True
        self.writer.close()


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class FakeEngine:
    """Serves `script` on a free port of the loopback."""

    script: Script
    tls: ssl.SSLContext | None = None
    requests: list[Exchange] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # the first request came in
    disconnects: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls, limit=2**25)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://localhost:{port}" if self.tls else f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for _ in range(3):  # turns of the loop: a connection that it just accepted gets its task
            await asyncio.sleep(0)
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Closes the connection with its task, though the task be cancelled before its first step."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        served = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                lines = (line.split(": ", 1) for line in head[1:-2])
                headers = {name.lower(): value for name, value in lines}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                exchange = Exchange(head[0].split()[1], headers, body, writer, len(self.requests), served)
                self.requests.append(exchange)
                self.asked.set()
                served += 1
                script = asyncio.ensure_future(self.script(exchange))
                watch = asyncio.create_task(self._watch(reader, script))
                try:
                    await script
                finally:
                    script.cancel()
                    watch.cancel()
                    await asyncio.gather(script, watch, return_exceptions=True)
                if exchange.closed:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.disconnects.set()
        except asyncio.CancelledError:
            pass  # the test is over

    async def _watch(self, reader: asyncio.StreamReader, script: asyncio.Future[None]) -> None:
        """End a script whose client has gone."""
        while not script.done():
            if reader.at_eof() or reader.exception() is not None:
                self.disconnects.set()
                script.cancel()
                return
            await asyncio.sleep(0.005)
