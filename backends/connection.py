# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""A thin HTTP/1.1 client connection to an engine: the hot half of the relay.

Each connection is one asyncio protocol with httptools' response parser. Its listener is called once for all bytes that
have arrived, inside the transport's callback: there is no queue, no task and no timer for a request.

Life of a connection:

    connect -> exchanging (request sent, then the response's head, then its body)
            -> idle (answer complete, may be reused)  |  closed (anything else)

Errors leave as `UpstreamError` and its subclasses.

`backends.native` has this module compiled; `backends.scanning` chooses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from backends.http1 import Aborted, ConnectionLost
from backends.writes import write
from router.core.errors import UpstreamError, UpstreamTimeout

#: Unread body bytes above which the socket is not read from.
HIGH_WATER_BYTES = 256 * 1024
#: After a read of so many bytes the rest of the process has its turn: the event loop would read on, up to 8 MB.
_LARGE_READ_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024


class Owner(Protocol):
    """The pool, as its connections see it."""

    def keep(self, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class Connection:
    """One connection and the answer on it, an asyncio protocol. Between `send` and `release` it belongs to one caller."""

    __slots__ = (
        "_chunks",
        "_complete",
        "_framed",
        "_parser",
        "_paused",
        "_pool",
        "_reusable",
        "_transport",
        "_unread",
        "answering",
        "closed",
        "draining",
        "ended",
        "error",
        "head_bytes",
        "head_complete",
        "idle_since",
        "listener",
        "loop",
        "on_body",
        "retry_after_s",
        "silent_sweeps",
        "status",
        "watched",
    )

    def __init__(self, pool: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self.loop = loop
        self._transport: asyncio.Transport | None = None  # or uvloop's, no subclass
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # of each piece of a body, from C to C
        self._parser: Any = httptools.HttpResponseParser(self)
        self.closed = False
        self.idle_since: float | None = None
        #: Called when something may have changed for `take` or the head.
        self.listener: Callable[[], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._chunks.clear()
        self._unread = 0
        self._paused = False
        self._complete = False
        #: The answer is complete or has failed: nothing more will come.
        self.ended = False
        self._reusable = False
        self._framed = False  # the head gives the body's framing; otherwise it ends with the connection
        self.answering = False
        self.head_complete = False
        self.head_bytes = 0
        self.status = 0
        self.retry_after_s: float | None = None
        self.error: UpstreamError | None = None
        self.watched = False
        self.draining = False
        self.silent_sweeps = 0

    # --- asyncio.Protocol
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            self._drop()  # bytes without a request: out of step
            return
        self.silent_sweeps = 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(UpstreamError("the engine's answer is not valid HTTP/1.1"))
            return
        if not self.head_complete:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self._fail(UpstreamError("the engine's response head is too large"))
            return
        if self._chunks:
            self.head_bytes = 0
            self._unread += len(data)
        elif not self._complete:  # framing alone: the head of a chunk, or trailers without end
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self._fail(UpstreamError("the engine's answer has too many trailers"))
                return
        if self.listener is not None:
            self.listener()
        elif self.draining:
            self._chunks.clear()
        if self._unread > HIGH_WATER_BYTES or len(data) >= _LARGE_READ_BYTES:
            self._hold_back(len(data))

    def _hold_back(self, read_bytes: int) -> None:
        """Stop reading while too much is unread, or for a turn of the event loop. After a complete answer nothing comes."""
        if self.closed or self._paused or self._complete or self._transport is None:
            return
        if self._unread > HIGH_WATER_BYTES:
            if self.draining:
                self._drop()
                return
            self._paused = True
            self._transport.pause_reading()
        elif read_bytes >= _LARGE_READ_BYTES:
            self._paused = True
            self._transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if (
            self._paused
            and self._unread <= HIGH_WATER_BYTES
            and not self.closed
            and self._transport is not None
        ):
            self._paused = False
            self._transport.resume_reading()

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self.ended = True
        if not self._complete and self.error is None:
            if exc is None and self.head_complete and not self._framed:
                self._complete = True
            else:
                self.error = ConnectionLost("the engine closed the connection before its answer ended")
        self._pool.forget(self)
        self._wake()
        self._parser = None  # breaks a reference cycle

    # --- httptools callbacks
    def on_message_begin(self) -> None:
        if self._complete:  # a second answer to one request
            self._framed = False
            self._reusable = False
            raise httptools.HttpParserError
        self.answering = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in {b"content-length", b"transfer-encoding"}:
            self._framed = True
        elif name == b"retry-after" and value.isdigit():  # a date is not read
            self.retry_after_s = float(value[:6])
        self.head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._framed = False
            return
        if self.head_bytes > MAX_HEAD_BYTES:
            self._fail(UpstreamError("the engine's response head is too large"))
            return
        self.status = status
        self.head_complete = True

    def on_message_complete(self) -> None:
        if not self.head_complete:
            return  # 1xx
        self._complete = self.ended = True
        self._reusable = self._parser.should_keep_alive()
        if self.draining:
            self._finish()

    # --- the caller's side
    def send(self, head: bytes, body: bytes) -> None:
        """Start an exchange; `head` is everything before the body."""
        self._reset()
        self.idle_since = None
        transport = self._transport
        if transport is None or self.closed or transport.is_closing():
            self.ended = True
            self.error = ConnectionLost("the connection was closed while idle")
        elif len(body) < 65536:
            write(transport, head + body)
        else:
            write(transport, head)
            write(transport, body)

    def take(self) -> bytes | None:
        """All body bytes that arrived since the last call: b"" at the end, None if none are here yet.

        Bytes that came before a failure are given first. Raises UpstreamError.
        """
        chunks = self._chunks
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self._unread = 0
            if self._paused:
                self._paused = False
                if self._transport is not None and not self.closed:
                    self._transport.resume_reading()
            return data
        if self.error is not None:
            raise self.error
        return b"" if self._complete else None

    def release(self) -> None:
        """The caller is done reading: reuse the connection if its answer ended, or once it has."""
        self.listener = None
        if self._complete:
            self._finish()
        elif not self.closed:
            self._chunks.clear()
            self.draining = True
            self.silent_sweeps = 0
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the listener finds `Aborted`."""
        self._fail(Aborted("the attempt was cancelled"))

    def time_out(self) -> None:
        self._fail(UpstreamTimeout("the engine was silent for longer than the idle limit"))

    def close_idle(self) -> None:
        """Close a connection that is not in an exchange."""
        self._drop()

    # --- internal
    def _finish(self) -> None:
        self.draining = False
        if self._reusable and not self.closed:
            self._pool.keep(self)
        else:
            self._drop()

    def _fail(self, error: UpstreamError) -> None:
        self.ended = True
        if self.error is None:
            self.error = error
        if isinstance(error, Aborted):
            self._chunks.clear()
        self._drop()
        self._wake()

    def _drop(self) -> None:
        self.closed = True
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self.listener is not None:
            self.listener()

    @property
    def waiting(self) -> bool:
        """A reader is waiting for the engine (a slow reader is not the engine's silence)."""
        return self.listener is not None and not self._chunks
