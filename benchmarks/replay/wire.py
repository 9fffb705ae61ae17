"""A measuring HTTP/1.1 client: what arrives is stamped and metered where the socket is read.

A general client wakes a task for each chunk, which costs more than all that is measured here. This one is on the gateway's own
connections to engines (`backends.connection`) and wakes its caller once, when the answer has ended.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from backends.http1 import ConnectionLost, Origin
from backends.pool import Pool
from backends.scanning import Connection
from benchmarks.replay.stream import StreamMeter
from router.core.errors import UpstreamError, UpstreamTimeout

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


class _Connection(Connection):
    """A connection as the gateway has them, whose answer is stamped and metered where the socket is read."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pool, loop)
        self._begin(StreamMeter())

    def _begin(self, meter: StreamMeter) -> None:
        self.answer = Answer()
        self.untouched = True  # no byte of the answer has come
        self._meter = meter
        self._parts: list[bytes] = []
        self._size = 0
        self._now = 0.0
        self._done: asyncio.Future[None] = self.loop.create_future()

    async def exchange(self, head: bytes, body: bytes, meter: StreamMeter, timeout_s: float) -> Answer:
        """Send a request and gather its answer, a stream into `meter`."""
        self._begin(meter)
        self.send(head, body)
        if self.ended:
            self.answer.error = "connection closed while idle"
            return self.answer
        self.listener = self._read
        timer = self.loop.call_later(timeout_s, self._give_up, f"no complete answer within {timeout_s:g} s")
        try:
            await self._done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()
            self.release()
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self.idle_since is None:
            self.untouched, self.answer.ended_at = False, self._now
        super().data_received(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        key = name.decode("latin-1").lower()
        if key in _WANTED_HEADERS or key.startswith("x-headway-"):
            self.answer.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.head_complete:
            self.answer.headers.clear()
            return
        self.answer.status = self.status
        content_type = self.answer.headers.pop("content-type", "")
        self.answer.streamed = self.status == 200 and content_type.startswith("text/event-stream")

    def _read(self) -> None:
        """More of the answer has come, or its end."""
        answer = self.answer
        try:
            while data := self.take():
                if answer.streamed:
                    self._meter.feed(data, self._now)
                    continue
                self._parts.append(data)
                self._size += len(data)
                if self._size > _BODY_LIMIT_BYTES:
                    self._give_up("the answer is too large")
                    return
            if data is None:
                return
            answer.data = b"".join(self._parts)
        except UpstreamError as error:
            lost = isinstance(error, ConnectionLost)
            reason = (
                "connection closed before the answer ended" if lost else "the answer is not valid HTTP/1.1"
            )
            answer.error = answer.error or reason
        if not self._done.done():
            self._done.set_result(None)

    def _give_up(self, reason: str) -> None:
        self.answer.error = self.answer.error or reason
        self.abort()


class Wire:
    """POSTs to one URL. An async context manager; leaving it closes every connection."""

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout_s: float, reuse: bool) -> None:
        """`timeout_s` bounds one answer from its sending on; `reuse` False takes a new connection each time."""
        origin = Origin.parse(url)
        lines = [
            f"POST {urlsplit(url).path or '/'} HTTP/1.1",
            f"host: {origin.authority}",
            *(f"{name}: {value}" for name, value in headers.items()),
            *([] if reuse else ["connection: close"]),
        ]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._timeout_s = timeout_s
        self._reuse = reuse
        tls = ssl.create_default_context() if origin.tls else None
        self._pool = Pool(origin, tls=tls, connect_timeout_s=CONNECT_TIMEOUT_S, kind=_Connection)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def post(self, body: bytes, request_id: str, meter: StreamMeter) -> Answer:
        """One exchange. A reused connection that turns out to be closed is replaced once."""
        head = b"%s\r\nx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            self._head,
            request_id.encode("ascii", "replace").replace(b"\r", b"").replace(b"\n", b""),
            len(body),
        )
        connection = cast("_Connection | None", self._pool.take_idle() if self._reuse else None)
        if connection is not None:
            answer = await connection.exchange(head, body, meter, self._timeout_s)
            if answer.error is None or not connection.untouched or answer.error.startswith("no complete"):
                return answer
        try:
            connection = cast("_Connection", await self._pool.connect())
        except UpstreamTimeout:
            return Answer(error=f"no connection within {CONNECT_TIMEOUT_S:g} s")
        except UpstreamError as error:
            cause = error.__cause__
            reason = (isinstance(cause, OSError) and cause.strerror) or type(cause).__name__
            return Answer(error=f"connection failed: {reason}")
        return await connection.exchange(head, body, meter, self._timeout_s)
