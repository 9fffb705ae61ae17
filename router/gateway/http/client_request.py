"""One request on a hot path, and the response to it, without ASGI.

ASGI takes a task, a scope and some messages for each request, and checks each header with a regular expression. Here the
server calls the request's handler at the end of the turn of the event loop in which its head came. A handler that need not wait
has finished when that call returns; one that must wait continues in a task. The head of the response and its first bytes leave
in one write, and each further write is one chunk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from backends.writes import write
from router.compiled import compiled_init, first_step
from router.gateway.http.request_body import ClientGone, announces_more, too_large

logger = logging.getLogger("headway")

_LastStep = Callable[[], None] | None
#: Returns its last step, if there is one. All handlers of a turn are called before any last step: requests that take the same
#: step one after another find its code and data in the processor's caches (docs/performance.md).
Handler = Callable[["ClientRequest"], Coroutine[Any, Any, _LastStep]]


class ClientConnection(Protocol):
    """The connection of a request. `tasks` is what the server waits for at its end, or cancels. `common_lines` gives the header
    lines of every response."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    tasks: set[Any]
    common_lines: Callable[[], bytes]

    def on_response_complete(self) -> None:
        """The response is written: the next request may be served."""
        ...


@compiled_init
@dataclass(slots=True, eq=False)
class ClientRequest:
    """One request. `headers` are as they came, names in lower case, `by_name` the same as a dictionary. `on_left` is called
    when the client leaves, `on_shutdown` when the server stops and no longer waits, `on_writable` once, when the client has
    read what was written. `chunked`: a stream is written in chunks, because the client speaks HTTP/1.1.

    `more_body`, `response_started`, `response_complete` and `keep_alive` are named as uvicorn names them: the connection
    reads them of its requests of both kinds.
    """

    _connection: ClientConnection
    _handler: Handler
    method: bytes
    path: str
    headers: list[tuple[bytes, bytes]]
    by_name: dict[bytes, bytes]
    chunked: bool
    keep_alive: bool
    expects_continue: bool
    paused: bool  # the client reads more slowly than we write; `on_writable` says when it has caught up
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0
    _limit: float = HIGH_WATER_LIMIT  # bytes that may wait to be read
    _waiter: asyncio.Future[None] | None = None
    more_body: bool = True
    left: bool = False
    response_started: bool = False
    response_complete: bool = False
    on_left: Callable[[], object] | None = None
    on_shutdown: Callable[[], object] | None = None
    on_writable: Callable[[], None] | None = None

    # --- its life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve it."""
        last = self.handle()
        if last is not None:
            last()

    def handle(self) -> _LastStep:
        """Call the handler. Returns its last step, if it did not have to wait. Otherwise the handler continues in a task, which
        is cancelled when the client leaves or the server shuts down."""
        self._connection.tasks.add(self)  # uvicorn waits for these and cancels them
        handling = self._handler(self)
        context = copy_context()
        try:
            ended, found = context.run(first_step, handling)
        except Exception:
            logger.exception("a request failed inside the gateway")
            self.abort()
            return None
        if ended:
            return None if found is None else partial(context.run, found)
        loop = self._connection.loop
        task = loop.create_task(_go_on(handling, found), context=context)
        # Later, so that the task has begun: the handler does not see a cancellation before the task's first step.
        self.on_left = partial(loop.call_soon, task.cancel)
        self.on_shutdown = task.cancel
        task.add_done_callback(self._handled)
        return None

    def _handled(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("a request failed inside the gateway", exc_info=error)
        self.abort()

    def cancel(self, msg: object = None) -> None:
        """The server shuts down and waits no longer."""
        del msg
        self._connection.loop.call_soon(self._shut_down)

    def _shut_down(self) -> None:
        if self.on_shutdown is not None:
            self.on_shutdown()

    def leave(self) -> None:
        """The client has left, or was cut off."""
        if self.left or self.response_complete:
            return
        self.left = True
        self._wake()
        hook, self.on_left = self.on_left, None
        if hook is not None:
            hook()

    def caught_up(self) -> None:
        """The client has read most of what was written."""
        self.paused = False
        hook, self.on_writable = self.on_writable, None
        if hook is not None:
            hook()

    # --- its body --------------------------------------------------------------------------------------
    def body_came(self, data: bytes) -> None:
        """A part of its body."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            if self._waiter is None:
                self._connection.flow.pause_reading()
            self._wake()

    def body_ended(self) -> None:
        """Its body is complete."""
        self.more_body = False
        if self._waiter is not None:
            self._wake()

    def body_here(self, max_body_mb: float) -> bytes | None:
        """The complete body, if it has arrived and nothing is wrong with it."""
        if self.more_body or self.expects_continue or self.left or self._size > max_body_mb * 1024 * 1024:
            return None
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def body(self, length: bytes | None, max_body_mb: float) -> bytes:
        """The complete body; `length` is the announced one. Raises the 413 as soon as the limit is exceeded, and
        ClientGone."""
        self._limit = limit = int(max_body_mb * 1024 * 1024)
        if length is not None and announces_more(length, limit):
            raise too_large(max_body_mb)
        connection = self._connection
        if self.expects_continue and not connection.transport.is_closing():
            self.expects_continue = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.more_body:
            connection.flow.resume_reading()
        while self.more_body and not self.left and self._size <= limit:
            self._waiter = waiter = connection.loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        if self.left:
            raise ClientGone
        if self._size > limit:
            raise too_large(max_body_mb)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- its response ----------------------------------------------------------------------------------
    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """The complete response in one write. `headers` are complete lines that the router made itself."""
        sent = b"" if self.method == b"HEAD" else body
        self._end(self._head(status, headers, b"content-length: %d\r\n\r\n" % len(body), sent))

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        """Begin a stream with its head and first bytes. It may stay open for long, so the request's headers are dropped."""
        self.headers.clear()
        self.by_name.clear()
        if not self.chunked:
            head = self._head(status, headers, b"\r\n", data)
        elif data:
            framing = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(data)
            head = self._head(status, headers, framing, data, b"\r\n")
        else:
            head = self._head(status, headers, b"transfer-encoding: chunked\r\n\r\n")
        if not self.left:
            self._connection.transport.write(head)

    def write(self, data: bytes) -> None:
        """Continue a stream; `data` is not empty."""
        if not self.left:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self, data: bytes) -> None:
        """End a stream with its last bytes (not empty)."""
        self._end(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self.chunked else data)

    def gone(self) -> None:
        """Stop writing: the client has left."""
        self.left = True
        self._parts = []
        self._connection.tasks.discard(self)

    def abort(self) -> None:
        """Close the connection at once."""
        self.gone()
        self._connection.transport.abort()

    def _head(self, status: int, headers: bytes, *rest: bytes) -> bytes:
        """The status line and headers, and the `rest` of the first write."""
        self.response_started = True
        self.expects_continue = False
        if not self.chunked:
            self.keep_alive = False
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        return b"".join((STATUS_LINE[status], self._connection.common_lines(), headers, closing, *rest))

    def _end(self, last: bytes) -> None:
        """Write what is left, and end the response."""
        self.response_complete = True
        self._parts = []  # frees an unread body: the connection keeps its last request
        connection = self._connection
        connection.tasks.discard(self)
        transport = connection.transport
        if self.keep_alive:
            if not self.left:
                write(transport, last)
        else:
            if not self.left:
                transport.write(last)
            transport.close()
        connection.on_response_complete()


async def _go_on(handling: Coroutine[Any, Any, _LastStep], waits_for: Any) -> None:
    """`_rest` and the last step, for a task (since Python 3.12 it takes no generator)."""
    last = await _rest(handling, waits_for)
    if last is not None:
        last()


@coroutine
def _rest(handling: Coroutine[Any, Any, _LastStep], waits_for: Any) -> Generator[Any, Any, _LastStep]:
    """A coroutine from where its first step left it: `waits_for` is what that step yielded."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 (a cancellation, or what the future failed with)
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waits_for = handling.send(None) if thrown is None else handling.throw(thrown)
        except StopIteration as ended:
            last: _LastStep = ended.value
            return last
