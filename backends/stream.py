"""One streaming answer: a connection's bytes through a scanner."""

from __future__ import annotations

import asyncio
from typing import Protocol

from backends.http1 import Aborted, Connection
from router.background import failed
from router.core.errors import UpstreamError
from router.core.interfaces import Batch, Sink

#: What reading a value of another type than expected raises.
_OF_ODD_SHAPES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Scanner(Protocol):
    """Turns bytes into batches; see `SseScanner` for what `done`, `failure` and `started` mean."""

    done: bool
    failure: UpstreamError | None
    started: bool

    def feed(self, data: bytes) -> Batch | None: ...


class EngineStream:
    """`router.core.interfaces.Stream` over one connection, which it owns until its end."""

    __slots__ = ("_connection", "_ended", "_finished", "_scanner", "_sink", "_stalled")

    def __init__(self, connection: Connection, scanner: Scanner) -> None:
        self._connection: Connection | None = connection
        self._scanner = scanner
        self._ended: UpstreamError | None = None
        self._sink: Sink | None = None
        self._finished: asyncio.Future[None] | None = None
        self._stalled = False

    async def read(self) -> Batch | None:
        connection = self._connection
        if connection is None:
            if self._ended is not None:
                raise self._ended
            return None
        try:
            while True:
                batch = self._next(connection)
                if batch is not None:
                    return batch
                if self._connection is None:
                    return None
                await connection.wait()
        except BaseException as error:
            self._give_up(error)
            raise

    async def pump(self, sink: Sink) -> None:
        connection = self._connection
        if connection is None:
            if self._ended is not None:
                raise self._ended
            return
        self._sink = sink
        finished = self._finished = asyncio.get_running_loop().create_future()
        connection.listener = self._arrived
        try:
            self._arrived()
            await finished
        except BaseException as error:
            connection.listener = None
            self._give_up(error)
            raise

    def resume(self) -> None:
        self._stalled = False
        self._arrived()

    def abort(self) -> None:
        if self._connection is not None:
            self._give_up(Aborted("the attempt was cancelled"))

    def _next(self, connection: Connection) -> Batch | None:
        """A batch if one is here; None if not yet, or at the end (the connection is given back then)."""
        scanner = self._scanner
        while True:
            if scanner.done:
                self._connection = None
                connection.release()
                return None
            if scanner.failure is not None:
                raise scanner.failure
            data = connection.take()
            if data is None:
                return None
            if not data:
                raise UpstreamError("the engine's stream ended without its end mark")
            batch = scanner.feed(data)
            if batch is not None:
                # Before the first token the request's own time limits hold, not the idle limit.
                connection.watched = scanner.started
                return batch

    def _arrived(self) -> None:
        """Something may have changed: hand the sink what is here. Runs inside the transport's callback."""
        connection, finished, sink = self._connection, self._finished, self._sink
        if connection is None or finished is None or sink is None or self._stalled or finished.done():
            return
        try:
            while (batch := self._next(connection)) is not None:
                if sink(batch):
                    self._stalled = (
                        True  # unread bytes pile up to the connection's mark, then it stops reading
                    )
                    return
                if self._connection is None:
                    break
            if self._connection is None:
                connection.listener = None
                finished.set_result(None)
        except (
            _OF_ODD_SHAPES
        ) as error:  # an event that nobody has thought of fails its attempt, not the request
            failed("engine-answer", error)
            self._end_with(connection, finished, UpstreamError("the engine's answer has an unknown shape"))
        except BaseException as error:  # noqa: BLE001 (raised again by `pump`, whose task it belongs to)
            self._end_with(connection, finished, error)

    @staticmethod
    def _end_with(connection: Connection, finished: asyncio.Future[None], error: BaseException) -> None:
        connection.listener = None
        if not finished.done():
            finished.set_exception(error)

    def _give_up(self, error: BaseException) -> None:
        connection = self._connection
        self._ended = error if isinstance(error, UpstreamError) else Aborted("the attempt was cancelled")
        self._connection = None
        if connection is not None:
            connection.listener = None
            connection.abort()
        finished = self._finished
        if finished is not None and not finished.done():
            finished.set_exception(self._ended)
