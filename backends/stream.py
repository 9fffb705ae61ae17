# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""One streamed answer: a scanner reads a connection's bytes, and the call's sink gets the batches.

`backends.native` has this module compiled; `backends.scanning` chooses.
"""

from __future__ import annotations

from typing import Any, Protocol

from router.background import failed
from router.core.errors import UpstreamError
from router.core.interfaces import Batch, Sink

from .connection import Connection
from .post import Post, Source

#: What reading a value of another type than expected raises.
ODD_SHAPES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Scanner(Protocol):
    """Turns bytes into batches; see `SseScanner` for what its attributes mean."""

    done: bool
    failure: UpstreamError | None
    started: bool

    @property
    def complete(self) -> bool: ...

    def feed(self, data: bytes) -> Batch | None: ...


class StreamedCall(Post):
    """`router.core.interfaces.OpenCall` for an answer that is streamed."""

    __slots__ = ("_paused", "_scanner", "_take")

    def __init__(
        self, pool: Source, head: bytes, request_id: str, body: Any, scanner: Scanner, sink: Sink
    ) -> None:
        """Raises UpstreamRejected for a body that JSON cannot hold."""
        super().__init__(pool, head, request_id, body, sink)
        self._scanner = scanner
        self._take = sink.take
        self._paused = False

    def resume(self) -> None:
        """Go on after `Sink.take` paused it."""
        self._paused = False
        self._on_data()

    def _opened(self, connection: Connection) -> None:
        self._body = b""  # it is not sent again
        connection.listener = self._on_data
        self._on_data()

    def _on_data(self) -> None:
        """Data, the end or an error may have arrived: hand over what is here."""
        connection = self._connection
        if connection is None or self._paused:
            return
        scanner = self._scanner
        taken = False
        try:
            while not scanner.done:
                if scanner.failure is not None:
                    raise scanner.failure
                if taken and not connection.ended:
                    return  # all that has come was taken
                data = connection.take()
                if data is None:
                    return
                batch = scanner.feed(data or b"\n\n")  # at the end: the end mark may lack its line end
                if batch is not None:
                    # Before the first token the request's own time limits hold, not the idle limit.
                    if not connection.watched:
                        connection.watched = scanner.started
                    paused = self._take(batch)
                    if self._connection is None:
                        return  # the sink has aborted the call
                    if paused:  # unread bytes pile up to the connection's mark, then it stops reading
                        self._paused = True
                        return
                if not data and not scanner.done:
                    if scanner.complete:
                        break  # `transformers serve` sends no end mark
                    raise UpstreamError("the engine's stream ended without its end mark")
                taken = True
        except UpstreamError as error:
            self._end_with(error)
            return
        except ODD_SHAPES as error:  # an event of an unknown shape fails its attempt, not the request
            failed("engine-answer", error)
            self._end_with(UpstreamError("the engine's answer has an unknown shape"))
            return
        except Exception as error:  # noqa: BLE001 (the root of the transport's callback)
            self._end_with(error)
            return
        self._connection = None
        connection.release()
        self._follower.ended(None)

    def _end_with(self, error: Exception) -> None:
        self.abort()
        self._failed(error)
