"""The HTTP server: uvicorn with its httptools protocol, bounded in header size and in time.

uvicorn leaves the size of a request head and the time a client may take to send a request unbounded; both
are bounded here. A request also gets a hook that tells at once when its client has gone, so that no task
has to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

#: Bytes of request line and headers, and how many headers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
#: A request still incomplete after this long must have come at `MIN_BYTES_PER_S` at least.
SLOW_AFTER_S = 10.0
MIN_BYTES_PER_S = 1024
SWEEP_S = 1.0


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits and a disconnect hook (`scope["state"]["connection"]`)."""

    on_disconnect: Callable[[], None] | None = None
    _head_bytes = 0
    _in_head = False
    _began_at: float | None = None  # a request is being received since
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._began_at = self.loop.time()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        hook, self.on_disconnect = self.on_disconnect, None
        if hook is not None:
            hook()

    def data_received(self, data: bytes) -> None:
        if self._began_at is None:
            self._began_at = self.loop.time()
        self._received += len(data)
        if self._in_head or self._idle:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, b"The request's headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["state"]["connection"] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEAD_BYTES:
            self._refuse(431, b"The request has too many or too large headers.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._began_at = None
        self._received = self._head_bytes = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def _answering(self) -> bool:
        """Whether a response is on its way, so that nothing else may be written."""
        cycle: RequestResponseCycle | None = self.cycle
        if self.pipeline:
            return True
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body

    def sweep(self, now: float) -> None:
        """Close a connection whose request comes too slowly (called about once a second)."""
        began_at = self._began_at
        if began_at is not None and self._answering:  # the next request waits for this one's answer
            self._began_at, self._received = now, 0
            return
        if began_at is None or now - began_at < SLOW_AFTER_S or self.transport.is_closing():
            return
        if self._received < (now - began_at) * MIN_BYTES_PER_S:
            self._refuse(408, b"The request came too slowly.")

    def _refuse(self, status: int, message: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answering:
            self.transport.close()
            return
        body = (
            b'{"error":{"message":"'
            + message
            + b'","type":"invalid_request_error","param":null,"code":"invalid_request"}}'
        )
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        self.transport.close()


class Responder:
    """Writes one response straight to its connection.

    ASGI's `send` would take head and body apart into messages and check each header by regular expression;
    here the head and the first bytes leave in one write, and each further write is one chunk. `headers` are
    whole header lines of the router's own making. Made from the `send` of the request that it answers.
    """

    __slots__ = ("_chunked", "_cycle", "_flow", "_write", "started")

    def __init__(self, send: Any) -> None:
        cycle: RequestResponseCycle = send.__self__
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._chunked = cycle.scope["http_version"] != "1.0"
        self.started = False

    @property
    def paused(self) -> bool:
        """Whether the client reads more slowly than we write; `drain` waits until it has caught up."""
        return self._flow.write_paused and not self._cycle.disconnected

    async def drain(self) -> None:
        """Wait until the client has read most of what was written."""
        await self._flow.drain()

    def gone(self) -> None:
        """The client has left: nothing more is written for it."""
        self._cycle.disconnected = True

    def abort(self) -> None:
        """Cut the connection."""
        self._cycle.transport.abort()

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        """The whole response in one write."""
        head = self._head(status, headers)
        if not self._cycle.disconnected:
            self._write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._end()

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        """Head and first bytes of a stream."""
        head = self._head(status, headers)
        if self._cycle.disconnected:
            return
        if not self._chunked:
            self._write(head + b"\r\n" + data)
        elif data:
            self._write(b"%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (head, len(data), data))
        else:
            self._write(head + b"transfer-encoding: chunked\r\n\r\n")

    def write(self, data: bytes) -> None:
        """More of a stream; `data` is not empty."""
        if not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes) -> None:
        """The last bytes of a stream (not empty), and its end."""
        if not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self._chunked else data)
        self._end()

    def _head(self, status: int, headers: bytes) -> bytes:
        cycle = self._cycle
        cycle.response_started = self.started = True
        cycle.waiting_for_100_continue = False
        if not self._chunked:
            cycle.keep_alive = False
        closing = b"" if cycle.keep_alive else b"connection: close\r\n"
        common = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        return b"%b%b%b%b" % (STATUS_LINE[status], common, headers, closing)

    def _end(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class GatewayServer(uvicorn.Server):
    """uvicorn's server; it also sweeps slow connections. Signals are its caller's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, GatewayProtocol):
                    connection.sweep(now)
        return await super().on_tick(counter)


def server_config(app: Any, host: str, port: int, *, grace_s: float) -> uvicorn.Config:
    """The one way the gateway is served: one process, no access log, keep-alive of 75 s."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=GatewayProtocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # whoever sends X-Forwarded-For must not pass for another
        log_config=None,
        server_header=False,
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        backlog=4096,
    )
