"""Pooled connections to one engine, with one periodic sweep in place of timers.

The sweep finds connections whose engine fell silent in mid-answer and closes idle ones in time.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from concurrent.futures import Future
from typing import Any

import aiohappyeyeballs

from backends.http1 import Origin
from backends.scanning import Connection
from router.background import surviving
from router.core.errors import OutOfSockets, UpstreamError, UpstreamTimeout

#: vLLM (uvicorn) closes idle connections after 5 s; reuse stops well before that.
IDLE_CONNECTION_S = 2.0
#: The sweep runs at least this often while connections are open.
SWEEP_S = 0.5
#: An answer whose reader is done has this long to end its chunked body before the connection is dropped.
DRAIN_S = 2.0
#: The next address of a name is tried after this long (RFC 8305), or when the one before has failed.
_NEXT_ADDRESS_S = 0.25
#: Errors of a connection that this machine causes, not the engine.
_SHORTAGE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)


def _shortage_in_lookup(error: OSError) -> int | None:
    """The shortage of sockets behind an error that is not of a connection: the lookup of a name reports one under any errno."""
    if isinstance(error, ConnectionError | ssl.SSLError):
        return None
    try:
        socket.socket().close()
    except OSError as own:
        return own.errno if own.errno in _SHORTAGE else None
    return None


def _reason(error: OSError) -> str:
    """Why there is no connection. Words of the system where the type says too little: a name, a certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (isinstance(error, socket.gaierror) and error.strerror) or type(error).__name__


def _look_up(host: str, port: int) -> Future[list[tuple[Any, ...]]]:
    """The addresses of a name, found in a thread of its own, which ends with the process even if the lookup does not."""
    result: Future[list[tuple[Any, ...]]] = Future()

    def run() -> None:
        try:
            result.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 (the thread's root: whoever waits for the result gets it)
            result.set_exception(error)

    try:
        threading.Thread(target=run, name="lookup", daemon=True).start()
    except RuntimeError as error:  # there are as many threads as the system allows
        result.set_exception(OSError(errno.EAGAIN, str(error)))
    return result


class Pool:
    """Connections to one engine; the freshest idle one is used first."""

    def __init__(
        self,
        origin: Origin,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 5.0,
        idle_timeout_s: float = 60.0,
        idle_connection_s: float = IDLE_CONNECTION_S,
        drain_s: float = DRAIN_S,
        kind: type[Connection] = Connection,
    ) -> None:
        self._origin = origin
        self._kind = kind
        self._tls = tls if origin.tls else None
        self._connect_timeout_s = connect_timeout_s
        self._idle_connection_s = idle_connection_s
        # A silence is seen after `limit` sweeps, so at most one sweep late.
        self._sweep_s = min(SWEEP_S, idle_timeout_s / 4, idle_connection_s / 4)
        self._silent_limit = max(1, round(idle_timeout_s / self._sweep_s))
        self._drain_limit = max(1, round(drain_s / self._sweep_s))
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._lookup: asyncio.Future[list[tuple[Any, ...]]] | None = None

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    @property
    def busy_connections(self) -> int:
        return len(self._busy)

    def take_idle(self) -> Connection | None:
        """A connection to send a request on; None if one has to be made. Raises UpstreamError if the pool is closed."""
        if self._closed:
            raise UpstreamError("the backend is closed")
        if not self._idle:
            return None
        connection = self._idle.pop()
        idle_since = connection.idle_since
        if idle_since is not None and connection.loop.time() - idle_since > self._idle_connection_s:
            connection.close_idle()  # the freshest is too old, so all are; the sweep closes the others
            return None
        self._busy.add(connection)
        return connection

    async def connect(self) -> Connection:
        """A new connection. Raises UpstreamError; `unreachable` unless this machine is at fault."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._connected(loop)
        except TimeoutError as error:
            raise UpstreamTimeout("no connection to the engine in time", unreachable=True) from error
        except OSError as error:  # refused, unreachable, unknown host, a certificate that does not verify
            shortage = error.errno if error.errno in _SHORTAGE else _shortage_in_lookup(error)
            if shortage is not None:
                raise OutOfSockets(f"the gateway has no socket left ({errno.errorcode[shortage]})") from error
            raise UpstreamError(
                f"cannot connect to the engine ({_reason(error)})", unreachable=True
            ) from error
        if self._closed:
            connection.abort()
            raise UpstreamError("the backend is closed")
        self._busy.add(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._sweep_s, self._on_sweep, loop)
        return connection

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """A connection to the first address of the engine's name that answers. Raises OSError."""
        tls = self._tls
        reached = await aiohappyeyeballs.start_connection(
            await self._addresses(loop), happy_eyeballs_delay=_NEXT_ADDRESS_S
        )
        _, connection = await loop.create_connection(  # type: ignore[type-var] # a protocol by its methods
            lambda: self._kind(self, loop),
            sock=reached,
            ssl=tls,
            server_hostname=self._origin.host if tls else None,
        )
        return connection

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> list[tuple[Any, ...]]:
        """The addresses of the engine's name. Raises OSError. There is one lookup at a time, in a thread of its own: uvloop
        does two at once for the whole process, so names whose lookup hangs would hold up those of all other engines."""
        at = self._origin.host, self._origin.port
        try:  # an address takes no lookup, and so no thread
            return socket.getaddrinfo(*at, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.wrap_future(_look_up(*at), loop=loop)
            self._lookup.add_done_callback(asyncio.Future.exception)  # perhaps nobody waits for it any more
        return await asyncio.shield(self._lookup)

    async def aclose(self) -> None:
        """Close every connection; readers get an error."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._busy):
            connection.abort()
        for connection in list(self._idle):
            connection.close_idle()
        # Aborted transports report their end on the next turn of the loop.
        await asyncio.sleep(0)

    # --- used by connections
    def keep(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if self._closed:
            connection.close_idle()
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.idle_since is not None and connection in self._idle:
            self._idle.remove(connection)

    # --- internal
    def _on_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        with surviving("pool-sweep"):
            self._close_idle_and_silent(loop)
        self._sweep = (
            loop.call_later(self._sweep_s, self._on_sweep, loop) if self._busy or self._idle else None
        )

    def _close_idle_and_silent(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest = loop.time() - self._idle_connection_s
        expired = [c for c in self._idle if c.idle_since is None or c.idle_since < oldest]
        for connection in expired:
            connection.close_idle()
        silent: list[Connection] = []
        drained: list[Connection] = []
        for connection in self._busy:
            if connection.draining:
                connection.silent_sweeps += 1
                if connection.silent_sweeps > self._drain_limit:
                    drained.append(connection)
            elif connection.watched and connection.waiting:
                connection.silent_sweeps += 1
                if connection.silent_sweeps > self._silent_limit:
                    silent.append(connection)
            else:
                connection.silent_sweeps = 0
        for connection in silent:
            connection.time_out()
        for connection in drained:
            connection.abort()
