"""A small HTTP/1.1 server on an asyncio protocol with httptools.

A handler is a synchronous function of an `Exchange`. It answers at once, or keeps the exchange and writes to it later
from a timer. So a chunk of a stream costs one `transport.write` and no task switch. If a client reads too slowly,
`Exchange.paused` is true; the handler then stops writing and continues in `on_drain`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
import orjson

logger = logging.getLogger("headway.emulator")

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
_HEADS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: headway-emulator\r\n".encode()
    for status in HTTPStatus
}


def _head(status: int) -> bytes:
    return _HEADS.get(status) or f"HTTP/1.1 {status} Status\r\nServer: headway-emulator\r\n".encode()


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its answer.

    `headers` have lower-case names. `on_drop` is called once if the client leaves before the answer is complete,
    `on_drain` when a slow client can take more.
    """

    connection: Connection
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    done: bool = False
    on_drop: Callable[[], None] | None = None
    on_drain: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly to get more now."""
        return self.connection.paused

    def json(self) -> Any:
        """The body as JSON; raises ValueError (orjson.JSONDecodeError)."""
        return orjson.loads(self.body)

    def respond(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """Send a complete answer."""
        if self.done:
            return
        head = self._head(status, content_type, f"Content-Length: {len(body)}")
        self.connection.write(head if self.method == "HEAD" else head + body)
        self._complete()

    def respond_json(self, status: int, value: Any) -> None:
        self.respond(status, orjson.dumps(value))

    def start(self, status: int, content_type: str) -> None:
        """Send the head of a chunked answer."""
        self.connection.write(self._head(status, content_type, "Transfer-Encoding: chunked"))

    def _head(self, status: int, content_type: str, length: str) -> bytes:
        close = "" if self.keep_alive else "Connection: close\r\n"
        return _head(status) + f"Content-Type: {content_type}\r\n{length}\r\n{close}\r\n".encode()

    def write(self, data: bytes) -> None:
        """Send one chunk."""
        if not self.done:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self, data: bytes = b"") -> None:
        """Send the last chunk (if any) and the end mark in one write."""
        if self.done:
            return
        if data:
            self.connection.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        else:
            self.connection.write(b"0\r\n\r\n")
        self._complete()

    def cut(self) -> None:
        """Reset the connection without ending the answer."""
        if not self.done:
            self.done = True
            self.connection.reset()

    def _complete(self) -> None:
        self.done = True
        self.on_drop = self.on_drain = None
        self.connection.completed(self)


class Server:
    """The shared state of one listener's connections: the handler, the limits, and the open connections."""

    def __init__(self, handler: Callable[[Exchange], None], keep_alive_s: float | None) -> None:
        self.handler = handler
        self.keep_alive_s = keep_alive_s
        self.connections: set[Connection] = set()
        self.draining = self.refusing = False
        self._empty: asyncio.Event | None = None
        self._listener: asyncio.Server | None = None
        self._address: tuple[str, int] | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the listener (port 0: any free port) and return its address. Raises OSError."""
        loop = asyncio.get_running_loop()
        self.refusing = False
        self._listener = await loop.create_server(lambda: Connection(self), host, port, backlog=2048)
        name = self._listener.sockets[0].getsockname()
        self._address = (str(name[0]), int(name[1]))
        return self._address

    def refuse(self) -> None:
        """Close the listener: the operating system refuses new connections."""
        self.refusing = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def drop_connections(self, *, idle_only: bool = False) -> None:
        for connection in list(self.connections):
            if not idle_only or connection.idle:
                connection.reset()

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening, give running answers at most `grace_s` to end, then reset the remaining connections."""
        self.draining = True
        self.refuse()
        self.drop_connections(idle_only=True)
        if self.connections and grace_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait_closed(), grace_s)
        self.drop_connections()
        await self._wait_closed()

    async def _wait_closed(self) -> None:
        if self.connections:
            self._empty = asyncio.Event()
            await self._empty.wait()

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()


class Connection(asyncio.Protocol):
    """One client connection. Requests are handled one after another; pipelined requests wait."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.paused = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._refused: int | None = None

    @property
    def idle(self) -> bool:
        return self._current is None

    # --- asyncio.Protocol ---
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._arm_idle()
        if self._server.refusing:  # it was accepted at the moment when the listener closed
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._disarm_idle()
        self._waiting.clear()
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.done = True
            drop, exchange.on_drop = exchange.on_drop, None
            exchange.on_drain = None
            if drop is not None:
                drop()

    def data_received(self, data: bytes) -> None:
        self._disarm_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # there is no other protocol here, so an upgrade request gets a plain HTTP answer
        except httptools.HttpParserError:
            self._fail(self._refused or 400)

    def eof_received(self) -> bool:
        # A client that closes its side has left: engines then abort its work, because uvicorn's and Go's servers do.
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._current is not None and self._current.on_drain is not None:
            self._current.on_drain()

    # --- httptools callbacks ---
    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refused = 413
            raise ValueError("body too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, _ = self._url.decode("latin-1").partition("?")
        exchange = Exchange(
            self,
            self._parser.get_method().decode("latin-1"),
            unquote(path),
            self._headers,
            b"".join(self._body),
            self._parser.should_keep_alive() and not self._server.draining,
        )
        self._body = []
        if self._current is None:
            self._handle(exchange)
        else:
            self._waiting.append(exchange)
            if len(self._waiting) > 16 and self._transport is not None:
                self._transport.pause_reading()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refused = 431
            raise ValueError("head too large")

    # --- answers ---
    def _handle(self, exchange: Exchange) -> None:
        self._current = exchange
        try:
            self._server.handler(exchange)
        except Exception:  # the root of a request: failures are logged and answered
            logger.exception("emulator: a handler failed on %s %s", exchange.method, exchange.path)
            if not exchange.done:
                exchange.keep_alive = False
                exchange.respond_json(500, {"error": "emulator: internal error"})

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def reset(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def completed(self, exchange: Exchange) -> None:
        """The answer of `exchange` is written; continue with the next request."""
        if exchange is not self._current:
            return
        self._current = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not exchange.keep_alive or self._server.draining:
            transport.close()
        elif self._waiting:
            following = self._current = self._waiting.popleft()
            if not self._waiting:
                transport.resume_reading()
            # Not directly from here: answers that are made at once would recurse once for each pipelined request.
            self._loop.call_soon(self._handle_next, following)
        else:
            self._arm_idle()

    def _handle_next(self, exchange: Exchange) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._handle(exchange)

    def _fail(self, status: int) -> None:
        if self._current is None:
            body = b"Invalid HTTP request received."
            self.write(
                b"%bContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                % (_head(status), len(body), body)
            )
        if self._transport is not None:
            self._transport.close()

    def _arm_idle(self) -> None:
        if self._server.keep_alive_s is not None:
            self._idle_timer = self._loop.call_later(self._server.keep_alive_s, self._expire)

    def _disarm_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _expire(self) -> None:
        if self._current is None and self._transport is not None:
            self._transport.close()
