# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""One POST to an engine and its answer, without a task: each step is taken in the callback in which it became possible.

    idle connection, else connect -> send -> head -> body -> given back | closed

A reused connection that dies at once, before the first byte of its answer (the engine's keep-alive ran out just then), is
replaced once by a fresh one. An answer whose status is not 2xx is read and becomes the engine's error.

`backends.native` has this module compiled; `backends.scanning` chooses.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Protocol, Self

from backends.engine_errors import from_response
from backends.http1 import ConnectionLost, hide_secrets
from router.core.errors import AnswerTooLarge, UpstreamError, UpstreamRejected
from router.core.raw_json import dumps

from .connection import Connection

MAX_ERROR_BYTES = 256 * 1024
#: A connection that the engine's keep-alive closes under a request dies within this time. After it the engine may have
#: worked on the request, which is not sent to it again.
_KEEP_ALIVE_RACE_S = 1.0
#: The event loop runs between encoding and writing a larger body.
_LARGE_BYTES = 1024 * 1024


class Source(Protocol):
    """Gives connections to one engine; `backends.pool.Pool`."""

    def take_idle(self) -> Connection | None: ...

    async def connect(self) -> Connection: ...


class Follower(Protocol):
    """Receives what becomes of a POST: the part of `router.core.interfaces.Sink` that every call uses."""

    def sent(self) -> None: ...

    def ended(self, answer: dict[str, Any] | None) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Post:
    """One POST. A subclass reads its answer (`_opened`). `_later` is what it waits for, other than its connection."""

    __slots__ = (
        "_body",
        "_connection",
        "_follower",
        "_head",
        "_later",
        "_parts",
        "_pool",
        "_request_id",
        "_resend_until",
        "_size",
    )

    def __init__(self, pool: Source, head: bytes, request_id: str, body: Any, follower: Follower) -> None:
        """`head` is made with `request_head`. `follower` is not called after `abort`. Raises UpstreamRejected for a body that
        JSON cannot hold."""
        try:
            self._body = dumps(body)
        except TypeError as error:
            raise UpstreamRejected("the request cannot be written as JSON (nested too deeply?)") from error
        self._pool = pool
        self._head = head
        self._request_id = request_id
        self._follower = follower
        self._connection: Connection | None = None
        self._later: asyncio.Task[Any] | asyncio.Handle | None = None
        self._resend_until = 0.0  # only a request on a reused connection is sent again
        self._parts: list[bytes] = []  # of a body that is read as a whole
        self._size = 0

    def start(self) -> Self:
        """Send it; returns itself. Raises UpstreamError if the pool is closed; other errors go to the follower."""
        if len(self._body) > _LARGE_BYTES:
            self._later = asyncio.get_running_loop().call_soon(self._start_large)
        else:
            self._start()
        return self

    def abort(self) -> None:
        """End it and close its connection. Safe at any time, also after the end."""
        later, self._later = self._later, None
        if later is not None:
            later.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.listener = None
            connection.abort()

    def _opened(self, connection: Connection) -> None:
        """The head of a 2xx answer is here: the subclass listens to the connection from now on."""
        raise NotImplementedError

    # --- sending ---------------------------------------------------------------------------------------
    def _start(self) -> None:
        connection = self._pool.take_idle()
        if connection is None:
            self._connect()
        else:
            self._resend_until = connection.loop.time() + _KEEP_ALIVE_RACE_S
            self._send(connection)

    def _start_large(self) -> None:
        self._later = None
        try:
            self._start()
        except UpstreamError as error:
            self._follower.failed(error)

    def _connect(self) -> None:
        # The connection's callbacks run in this context for all requests that it will serve, not only for this one.
        connecting = asyncio.get_running_loop().create_task(self._pool.connect(), context=Context())
        self._later = connecting
        connecting.add_done_callback(self._connected)

    def _connected(self, connecting: asyncio.Task[Connection]) -> None:
        error = UpstreamError("cancelled") if connecting.cancelled() else connecting.exception()
        if self._later is not connecting:  # aborted meanwhile
            if error is None:
                connecting.result().abort()
            return
        self._later = None
        if error is None:
            self._send(connecting.result())
        else:
            self._follower.failed(
                error if isinstance(error, Exception) else UpstreamError(type(error).__name__)
            )

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        body = self._body
        head = b"%b%b\r\ncontent-length: %d\r\n\r\n" % (
            self._head,
            self._request_id.encode("ascii"),
            len(body),
        )
        connection.listener = self._on_head
        connection.send(head, body)
        if connection.error is None:
            self._follower.sent()
        else:
            self._lost(connection, connection.error)

    def _on_head(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if not connection.head_complete:
            if connection.error is not None:
                self._lost(connection, connection.error)
        elif 200 <= connection.status < 300:
            self._opened(connection)
        else:
            connection.watched = True  # the idle limit holds from here on
            connection.listener = self._on_error_body
            self._on_error_body()

    def _lost(self, connection: Connection, error: UpstreamError) -> None:
        """The connection failed before the answer's head was here."""
        self.abort()
        again = connection.loop.time() < self._resend_until
        if again and isinstance(error, ConnectionLost) and not connection.answering:
            self._resend_until = 0.0
            self._connect()
        else:
            self._follower.failed(error)

    def _on_error_body(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            said = self._complete_body(connection, MAX_ERROR_BYTES)
        except AnswerTooLarge:
            said = b""
        except UpstreamError as error:
            self._follower.failed(error)
            return
        if said is not None:
            answered = from_response(connection.status, said)
            answered.retry_after_s = connection.retry_after_s
            self._failed(answered)

    def _failed(self, error: Exception) -> None:
        """Tell the follower of an error, which may be the engine's."""
        if isinstance(error, UpstreamError):
            hide_secrets(error, self._head)
        self._follower.failed(error)

    def _complete_body(self, connection: Connection, limit_bytes: int) -> bytes | None:
        """The body once all of it is here. Raises UpstreamError; the connection is given back or closed by then."""
        try:
            while data := connection.take():
                self._parts.append(data)
                self._size += len(data)
                if self._size > limit_bytes:
                    raise AnswerTooLarge("the engine's answer is too large")
        except UpstreamError:
            self.abort()
            raise
        if data is None:
            return None
        self._connection = None
        connection.release()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
