"""The HTTP server: uvicorn with its httptools protocol, bounded in header size and in time.

uvicorn leaves the size of a request head and the time a client may take to send a request unbounded; both
are bounded here. A request also gets a hook that tells at once when its client has gone, so that no task
has to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
        self._received = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def sweep(self, now: float) -> None:
        """Close a connection whose request comes too slowly (called about once a second)."""
        began_at = self._began_at
        if began_at is None or now - began_at < SLOW_AFTER_S or self.transport.is_closing():
            return
        if self._received < (now - began_at) * MIN_BYTES_PER_S:
            self._refuse(408, b"The request came too slowly.")

    def _refuse(self, status: int, message: bytes) -> None:
        if self.transport.is_closing():
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


class GatewayServer(uvicorn.Server):
    """uvicorn's server; it also sweeps slow connections, and leaves signals to its caller's choice."""

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
        log_config=None,
        server_header=False,
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        backlog=4096,
    )
