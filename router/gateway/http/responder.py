"""Writes responses of the hot paths."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class Responder:
    """Writes one response straight to its connection.

    ASGI's `send` splits head and body into messages and checks each header with a regular expression. Here the head and
    the first bytes leave in one write, and each further write is one chunk. `headers` are complete header lines that the
    router made itself. The constructor takes the request's `send`.
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
        """Whether the client reads more slowly than we write. `drain` waits until it has caught up."""
        return self._flow.write_paused and not self._cycle.disconnected

    @property
    def left(self) -> bool:
        """Whether the client has gone."""
        disconnected: bool = self._cycle.disconnected
        return disconnected

    async def drain(self) -> None:
        """Wait until the client has read most of what was written."""
        await self._flow.drain()

    def gone(self) -> None:
        """Stop writing: the client has left."""
        self._cycle.disconnected = True

    def abort(self) -> None:
        """Close the connection at once."""
        self._cycle.transport.abort()

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """The complete response in one write."""
        head = self._head(status, headers)
        if not self._cycle.disconnected:
            self._write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._end()

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        """Begin a stream with its head and first bytes."""
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
        """Continue a stream; `data` is not empty."""
        if not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes) -> None:
        """End a stream with its last bytes (not empty)."""
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
