"""One streaming answer: a connection's bytes through a scanner."""

from __future__ import annotations

from typing import Protocol

from backends.http1 import Aborted, Connection
from router.core.errors import UpstreamError
from router.core.interfaces import Batch


class Scanner(Protocol):
    """Turns bytes into batches; see `SseScanner` for what `done`, `failure` and `started` mean."""

    done: bool
    failure: UpstreamError | None
    started: bool

    def feed(self, data: bytes) -> Batch | None: ...


class EngineStream:
    """`router.core.interfaces.Stream` over one connection, which it owns until its end."""

    __slots__ = ("_connection", "_ended", "_scanner")

    def __init__(self, connection: Connection, scanner: Scanner) -> None:
        self._connection: Connection | None = connection
        self._scanner = scanner
        self._ended: UpstreamError | None = None

    async def read(self) -> Batch | None:
        scanner, connection = self._scanner, self._connection
        if connection is None:
            if self._ended is not None:
                raise self._ended
            return None
        try:
            while True:
                if scanner.done:
                    self._connection = None
                    connection.release()
                    return None
                if scanner.failure is not None:
                    raise scanner.failure
                data = connection.take()
                if data is None:
                    await connection.wait()
                elif data:
                    batch = scanner.feed(data)
                    if batch is not None:
                        # Before the first token the request's own time limits hold, not the idle limit.
                        connection.watched = scanner.started
                        return batch
                else:
                    raise UpstreamError("the engine's stream ended without its end mark")
        except BaseException as error:
            self._ended = error if isinstance(error, UpstreamError) else Aborted("the attempt was cancelled")
            self._connection = None
            connection.abort()
            raise

    def abort(self) -> None:
        connection = self._connection
        if connection is not None:
            self._connection = None
            self._ended = Aborted("the attempt was cancelled")
            connection.abort()
