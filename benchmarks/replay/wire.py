"""A measuring HTTP/1.1 client: what arrives is stamped and metered where the socket is read.

A general client wakes a task for each chunk, which costs more than everything that is measured here; this
one wakes its caller once, when the answer has ended. TCP_NODELAY is on (the event loop sets it), connections are reused if wished.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from benchmarks.replay.stream import StreamMeter

#: Idle connections go before servers drop them (vLLM's and uvicorn's keep-alive is 5 s).
KEEPALIVE_S = 2.0
CONNECT_TIMEOUT_S = 30.0
_BODY_LIMIT_BYTES = 16 << 20
_WANTED_HEADERS = frozenset(("x-request-id", "retry-after", "x-should-retry", "content-type"))


@dataclass(slots=True)
class Answer:
    """What came back. `data` is the body of an answer that was no event stream; `ended_at` is when the last
    byte came; `error` says what went wrong below HTTP, None if nothing did."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    streamed: bool = False
    ended_at: float | None = None
    error: str | None = None


class _Connection(asyncio.Protocol):
    """One connection: idle, or in one exchange whose answer it gathers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self.closed = False
        self.idle_since = 0.0
        self._ended: asyncio.Future[None] | None = None
        self._begin(StreamMeter())

    def _begin(self, meter: StreamMeter) -> None:
        self.answer = Answer()
        self.reusable = False
        self._meter = meter
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self._framed = False
        self._head_complete = False
        self._complete = False
        self.untouched = True  # no byte of the answer has come

    async def exchange(self, request: bytes, meter: StreamMeter, timeout_s: float) -> Answer:
        """Send `request` and gather its answer, a stream into `meter`."""
        self._begin(meter)
        transport = self._transport
        if transport is None or self.closed or transport.is_closing():
            self.answer.error = "connection closed while idle"
            return self.answer
        ended = self._ended = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, f"no complete answer within {timeout_s:g} s")
        try:
            transport.write(request)
            await ended
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()
            self._ended = None
        return self.answer

    def close(self) -> None:
        """Drop the connection."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._ended is None:
            self.close()  # bytes that nobody asked for
            return
        self.untouched = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not valid HTTP/1.1")
            return
        answer = self.answer
        if self._parts and answer.streamed:
            self._meter.feed(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts), now)
            self._parts.clear()
        answer.ended_at = now
        if self._complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._ended is None:
            return
        if exc is None and self._head_complete and not self._framed:
            self._finish()  # a body that ends with its connection
        else:
            self._fail("connection closed before the answer ended")

    # --- httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in ("content-length", "transfer-encoding"):
            self._framed = True
        if key in _WANTED_HEADERS or key.startswith("x-headway-"):
            self.answer.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._framed = False
            self.answer.headers.clear()
            return
        self._head_complete = True
        self.answer.status = status
        content_type = self.answer.headers.pop("content-type", "")
        self.answer.streamed = status == 200 and content_type.startswith("text/event-stream")

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        if not self.answer.streamed:
            self._size += len(data)
            if self._size > _BODY_LIMIT_BYTES:
                self._fail("the answer is too large")

    def on_message_complete(self) -> None:
        if self._head_complete:
            self._complete = True
            self.reusable = self._parser.should_keep_alive()

    # --- the end
    def _finish(self) -> None:
        if not self.answer.streamed:
            self.answer.data = b"".join(self._parts)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, reason: str) -> None:
        self.reusable = False
        if self.answer.error is None:
            self.answer.error = reason
        self.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


class Wire:
    """POSTs to one URL. An async context manager; leaving it closes every connection."""

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout_s: float, reuse: bool) -> None:
        """`timeout_s` bounds one answer from its sending on; `reuse` False takes a new connection each time."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"POST {parts.path or '/'} HTTP/1.1",
            f"host: {host}" if parts.port is None else f"host: {host}:{parts.port}",
            *(f"{name}: {value}" for name, value in headers.items()),
            *([] if reuse else ["connection: close"]),
        ]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._timeout_s = timeout_s
        self._reuse = reuse
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()
        # One turn of the loop lets the transports close.
        await asyncio.sleep(0)

    async def post(self, body: bytes, request_id: str, meter: StreamMeter) -> Answer:
        """One exchange. A reused connection that turns out to be closed is replaced once."""
        request = b"%s\r\nx-request-id: %s\r\ncontent-length: %d\r\n\r\n%s" % (
            self._head,
            request_id.encode("ascii", "replace").replace(b"\r", b"").replace(b"\n", b""),
            len(body),
            body,
        )
        connection = self._take_idle()
        if connection is not None:
            answer = await self._exchange(connection, request, meter)
            if answer.error is None or not connection.untouched or answer.error.startswith("no complete"):
                return answer
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._connect()
        except TimeoutError:
            return Answer(error=f"no connection within {CONNECT_TIMEOUT_S:g} s")
        except OSError as error:
            return Answer(error=f"connection failed: {error.strerror or type(error).__name__}")
        return await self._exchange(connection, request, meter)

    async def _exchange(self, connection: _Connection, request: bytes, meter: StreamMeter) -> Answer:
        try:
            return await connection.exchange(request, meter, self._timeout_s)
        finally:
            if connection.reusable and self._reuse and not connection.closed:
                connection.idle_since = time.perf_counter()
                self._idle.append(connection)
            else:
                connection.close()
                self._all.discard(connection)

    def _take_idle(self) -> _Connection | None:
        oldest = time.perf_counter() - KEEPALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                return connection
            connection.close()
            self._all.discard(connection)
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(loop), self._host, self._port, ssl=self._tls
        )
        self._all.add(connection)
        return connection
