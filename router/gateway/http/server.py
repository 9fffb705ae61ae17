"""The HTTP server: uvicorn with its httptools protocol, and bounds on what a connection may hold and for how long.

uvicorn does not bound the size of a request's head, pipelined requests, the time in which a client sends or reads, or the
number of connections. All are bounded here. A client that exceeds the bounds loses its connection.

Requests on the hot paths do not go through ASGI: their handler is called at the end of the turn of the event loop in which
their head came (`router.gateway.http.client_request`). The handler is told at once when its client leaves. To see this, the
server always reads from a connection, except while a body arrives faster than it is consumed.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import struct
import termios
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from backends.writes import together
from router.config import FleetConfig
from router.core.errors import invalid_request
from router.gateway.codecs.ollama.answer import error_body
from router.gateway.codecs.openai import openai_error
from router.gateway.http.client_request import ClientRequest, Handler

logger = logging.getLogger("headway")

#: Bytes of the request line and headers; number of headers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
#: Bytes of framing (chunk sizes and extensions) for each byte of the body.
MAX_OVERHEAD = 16
#: What a client may pipeline while its request is answered.
MAX_AHEAD_REQUESTS = 8
MAX_AHEAD_BYTES = 128 * 1024
#: What is read and dropped of a request that was answered before it had arrived completely. Closing at once would reset
#: the connection, and the client, still sending, would lose the answer.
MAX_DROPPED_BYTES = 64 * 1024 * 1024
MAX_DROPPING_S = 30.0
#: A request that is still incomplete after this time must have arrived at `MIN_BYTES_PER_S` or faster.
SLOW_AFTER_S = 10.0
MIN_BYTES_PER_S = 1024
#: Above this share of the connection limit, idle connections are closed for new ones.
CROWDED_SHARE = 0.9
_NEW_S = 1.0
#: Connections swept between two turns of the event loop.
_SLICE = 500

_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


class _Refused(Exception):
    """Refuses a request and closes its connection with this status."""

    def __init__(self, status: int, message: str, why: str = "malformed") -> None:
        super().__init__(message)
        self.status = status
        self.why = why


def _unread_bytes(transport: asyncio.Transport) -> int:
    """The bytes that the client has not read, once the system's buffer is full: those in our buffer and in the system's.

    The system may hold megabytes, and takes more only when a third of them has been sent.
    """
    unread = transport.get_write_buffer_size()
    if unread:
        with suppress(OSError):  # only Linux tells this of a socket
            sent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            unread += struct.unpack("i", sent)[0]
    return unread


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits, and with the hot paths beside ASGI."""

    _current: RequestResponseCycle | ClientRequest | None = None  # the request that is answered now
    url = b""  # of the incoming request
    _in_head = False
    _upgraded = False  # the client asked for another protocol: it gets none, and the connection ends
    _unreadable = False  # what follows the requests that are answered
    _overhead = 0  # bytes of the incoming request, minus the framing that its body allows
    _ahead = 0  # bytes that arrived while a request was answered
    _dropped = 0
    _began_at: float | None = None  # when the incoming request began
    _received = 0  # bytes since `_began_at`
    _idle_since = 0.0
    _unread = 0  # bytes that wait for the client to read them
    _unread_since = 0.0

    def __init__(self, *args: Any, server: GatewayServer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server = server
        #: The header lines of every response.
        self.common_lines = server.common_lines

    # --- the connection ------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._began_at = self.loop.time()
        super().connection_made(transport)
        if len(self.connections) > self._server.max_connections:
            self._refuse("full", 503, "The gateway has reached its limit of connections.")

    def eof_received(self) -> None:
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self.cycle, ClientRequest):
            self.cycle = None  # uvicorn would notify it as one of its own
        super().connection_lost(exc)
        self._left()
        self._current = None  # breaks a reference cycle

    def _left(self) -> None:
        """The client has left or was cut off: notify its requests."""
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._current, *waiting):
            if isinstance(cycle, ClientRequest):
                cycle.leave()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self._current, ClientRequest):
            self._current.paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        if isinstance(self._current, ClientRequest):
            self._current.caught_up()

    # --- receiving -----------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._began_at is None:
            self._began_at = self.loop.time()
        size = len(data)
        self._received += size
        self._overhead += size
        if self._current is not None and self._answering:
            self._ahead += size
            if self._ahead > MAX_AHEAD_BYTES:
                self._close("ahead")
                return
            if self._unreadable:
                return
        rest = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._refuse(cause.why, cause.status, str(cause))
            elif cause is None:
                self._refuse("malformed", 400, "This is not a valid HTTP request.")
            else:
                logger.error("a request could not be read (%s)", type(cause).__name__)
                self._refuse("malformed", 400, "The request could not be read.")
        else:
            if self._overhead > MAX_HEAD_BYTES:
                self._refuse("malformed", 431, "The request's headers are too large.")
        if rest is not None:
            self._read_without_upgrade(rest)

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Read the head again without its Upgrade, then the `rest`: the parser does not read the body of a request with one.
        Java's client writes it into its first request."""
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
            b"".join(lines),
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.data_received(head + rest)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_AHEAD_REQUESTS:
            raise _Refused(400, "Too many requests were sent before the answer to an earlier one.", "ahead")
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # trailers are not headers
        self.headers.append((name.lower(), value))
        if len(value) > MAX_HEAD_BYTES:
            raise _Refused(431, "The request has a header that is too large.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > MAX_HEADERS:
            raise _Refused(431, "The request has too many headers.")
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            raise _Refused(505, "This server speaks HTTP/1.1.")
        by_name: dict[bytes, bytes] = dict(self.headers)
        if b"expect" in by_name:
            expected = [value.lower() for name, value in self.headers if name == b"expect"]
            self.expect_100_continue = b"100-continue" in expected
        if self.parser.should_upgrade():
            if b"upgrade" not in by_name:
                raise _Refused(400, "This server is no proxy.")  # CONNECT
            self._upgraded = True
            return
        self._check_framing(by_name, version)
        if version == "1.0":
            self.expect_100_continue = False
        # After these, what follows may be the body, a request or another protocol, and cannot be told apart.
        unclear = self.expect_100_continue or self._upgraded
        try:
            path = self._server.hot_paths.get(self.url) or self._hot_path(self.url)
            if path is None:
                self._begin_asgi(unclear=unclear)
            else:
                self._begin_hot(path, by_name, version, unclear=unclear)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise _Refused(400, "The request's target is not valid.") from None
        if self.pipeline:
            self.flow.resume_reading()

    def _hot_path(self, url: bytes) -> str | None:
        """The hot path that a target names in another way."""
        if b"?" not in url and b"%" not in url and url[:1] == b"/":
            return None
        found: bytes | None = httptools.parse_url(url).path
        return None if found is None else self._server.hot_paths.get(unquote(found.decode("ascii")).encode())

    def _begin_hot(self, path: str, by_name: dict[bytes, bytes], version: str, *, unclear: bool) -> None:
        request = ClientRequest(
            self,
            self._server.handler,
            self.parser.get_method(),
            path,
            self.headers,
            by_name,
            chunked=version != "1.0",
            keep_alive=version != "1.0" and not unclear and self.parser.should_keep_alive(),
            expects_continue=self.expect_100_continue,
            paused=self.flow.write_paused,
        )
        before: RequestResponseCycle | ClientRequest | None = self.cycle
        self.cycle = request  # type: ignore[assignment]
        if before is None or before.response_complete:
            self._current = request
            arrived = self._server.arrived
            if not arrived:
                self.loop.call_soon(self._server.serve_all)
            arrived.append(request)
        else:
            self.pipeline.appendleft((request, self.app))  # type: ignore[arg-type]

    def _begin_asgi(self, *, unclear: bool) -> None:
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope
        self.url, self.expect_100_continue = url, expects_continue
        self.headers.extend(headers)
        if url[:1] != b"/" and httptools.parse_url(url).path is None:
            self.url += b"/"
        super().on_headers_complete()
        if unclear:
            self.cycle.keep_alive = False

    def _check_framing(self, by_name: Mapping[bytes, bytes], version: str) -> None:
        """Refuse framing that a proxy could read differently. The parser has already refused two lengths, a length with
        chunks, and wrong line ends."""
        if len(by_name) < len(self.headers):
            framing = [name for name, _ in self.headers if name in _FRAMING]
            if len(set(framing)) < len(framing):
                raise _Refused(400, "A header that is allowed only once is repeated.")
        coding = by_name.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            raise _Refused(400, "Transfer-Encoding may only be chunked, and only in HTTP/1.1.")

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._overhead -= size * (1 + MAX_OVERHEAD)
        cycle = self.cycle
        if cycle.response_complete:
            self._dropped += size
            if self._dropped > MAX_DROPPED_BYTES:
                raise _Refused(413, "The request's body continued after the answer.")
            return
        if isinstance(cycle, ClientRequest):
            cycle.body_came(body)
        else:
            super().on_body(body)
        if self.pipeline:  # nobody consumes it yet; MAX_AHEAD_BYTES bounds it
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self._upgraded and self.parser.should_upgrade():
            return  # it will be read again
        self._began_at = None
        self._received = self._overhead = self._dropped = 0
        if isinstance(self.cycle, ClientRequest):
            self.cycle.body_ended()
        else:
            super().on_message_complete()
        self.flow.resume_reading()  # so that we see the client leave

    # --- answering -----------------------------------------------------------------------------------
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        if isinstance(cycle, ClientRequest):
            cycle.paused = self.flow.write_paused  # since it arrived, the client may have read
            # It arrived while another one was answered, which is still at its end.
            self.loop.call_soon(cycle.start)
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        cycle, self._current = self._current, None
        self._ahead = 0
        # uvicorn sets a timer for each answer here, which costs more than our sweep.
        now = self._idle_since = self.loop.time()
        if cycle is not None and cycle.more_body:  # from now on the rest is dropped
            self._began_at, self._received = now, 0
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    @property
    def _answering(self) -> bool:
        """Whether a response is being written, so that nothing else may be."""
        cycle = self._current
        return cycle is not None and (cycle.response_started or not cycle.more_body)

    # --- closing -------------------------------------------------------------------------------------
    def sweep(self, now: float, stall_s: float, receive_s: float, *, crowded: bool) -> None:
        """Close the connection if it takes too long (called about once a second).

        A client must read some of what waits for it within `stall_s`, and send a complete request within `receive_s`.
        """
        unread = _unread_bytes(self.transport)
        # While an engine's answer arrives, its writes hide how much the client reads.
        if unread and (self.flow.write_paused or self._current is None or self.transport.is_closing()):
            if not self._unread or unread < self._unread:
                self._unread, self._unread_since = unread, now
            elif now - self._unread_since >= stall_s:
                self._close("stalled")
                self.transport.abort()
            return
        self._unread = 0
        began_at = self._began_at
        if self.transport.is_closing():
            return
        if began_at is None:
            if self._current is None and (crowded or now - self._idle_since >= self.timeout_keep_alive):
                self._close("crowded" if crowded else "idle")
        elif self._answering:  # the next request waits for this answer
            self._began_at, self._received = now, 0
        elif crowded and not self._received and now - began_at >= _NEW_S:
            self._close("crowded")
        elif self._current is None and self._dropped and now - began_at >= MAX_DROPPING_S:
            self._close("slow")
        elif now - began_at >= receive_s or (
            now - began_at >= SLOW_AFTER_S and self._received < (now - began_at) * MIN_BYTES_PER_S
        ):
            self._refuse("slow", 408, "The request came too slowly.")

    def _close(self, why: str) -> None:
        """Close the connection and count it."""
        self._server.closed[why] += 1
        self.transport.close()

    def _refuse(self, why: str, status: int, message: str) -> None:
        """Close the connection, with an error response unless another response is being written. Complete requests that came
        before what cannot be read are answered first."""
        if self.transport.is_closing():
            return
        current = self._current
        if why == "malformed" and current is not None and not current.more_body:
            if self.pipeline and self.pipeline[0][0].more_body:
                self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else current
            last.keep_alive = False
            self._unreadable = True
            self._server.closed[why] += 1
            return
        cycle: RequestResponseCycle | None = self.cycle
        dropping = self._current is None and cycle is not None and cycle.response_complete and cycle.more_body
        if not self._answering and not dropping:
            if self.url.startswith(b"/api/"):
                body = error_body(message)
            else:
                code = "server_overloaded" if status == 503 else "invalid_request"
                body = openai_error(invalid_request(message, None, code, status))
            self.transport.write(
                b"%bcontent-type: application/json\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n%b"
                % (STATUS_LINE[status], b"retry-after: 1\r\n" if status == 503 else b"", len(body), body)
            )
        self._close(why)
        self._left()


class GatewayServer(uvicorn.Server):
    """uvicorn's server with a limit of connections, for sockets that listen already. The caller handles signals.

    `app` is the ASGI application. `fleet` returns the current fleet file. `hot_paths` maps each path that `handler` serves,
    as it stands in a request, to its name; all else goes to `app`. At the end open requests have `grace_s`. `closed` counts
    the connections that the server closed, by reason: `full` (too many), `crowded` (idle while there were many), `idle`
    (longer than keep-alive), `malformed`, `ahead` (too much was sent while a request was answered), `slow` (a request
    arrived too slowly), `stalled` (an answer was not read).
    """

    def __init__(
        self,
        app: Any,
        fleet: Callable[[], FleetConfig],
        hot_paths: Iterable[str],
        handler: Handler,
        *,
        grace_s: float,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(GatewayProtocol, server=self),  # type: ignore[arg-type]
            ws="none",
            loop="uvloop",
            lifespan="on",
            access_log=False,
            proxy_headers=False,  # a client must not change its address with X-Forwarded-For
            log_config=None,
            server_header=False,
            date_header=True,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(grace_s)),
            backlog=4096,
        )
        super().__init__(config)
        self._fleet = fleet
        self.hot_paths: Mapping[bytes, str] = {path.encode(): path for path in hot_paths}
        self.handler = handler
        #: The requests that came in this turn of the event loop; `serve_all` serves them at its end.
        self.arrived: list[ClientRequest] = []
        self._common: tuple[Any, bytes] = (None, b"")
        # Half of the files that this process may open: each request needs a second connection, to its engine.
        self._room = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.closed: Counter[str] = Counter(
            dict.fromkeys(("full", "crowded", "idle", "malformed", "ahead", "slow", "stalled"), 0)
        )

    @property
    def max_connections(self) -> int:
        """The most client connections that may be open."""
        return min(self._fleet().server.max_connections, self._room)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.server_state.connections)

    def serve_all(self) -> None:
        """Serve the requests that came, step by step (`router.gateway.http.client_request.Handler`)."""
        arrived, self.arrived = self.arrived, []
        lasts = [request.handle() for request in arrived]
        together([last for last in lasts if last is not None])

    def common_lines(self) -> bytes:
        """The header lines of every response. uvicorn makes a new list of them when the date changes."""
        headers = self.server_state.default_headers
        if self._common[0] is not headers:
            self._common = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._common[1]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            await self._sweep()
        return await super().on_tick(counter)

    async def _sweep(self) -> None:
        limits = self._fleet().limits
        crowded = self.connections > CROWDED_SHARE * self.max_connections
        connections = iter(list(self.server_state.connections))
        while batch := list(islice(connections, _SLICE)):
            now = asyncio.get_running_loop().time()
            for connection in batch:
                if not isinstance(connection, GatewayProtocol) or connection.parser is None:
                    continue  # closed meanwhile
                try:
                    connection.sweep(now, limits.client_stall_s, limits.request_timeout_s, crowded=crowded)
                except Exception:  # a fault with one connection must not end the server
                    logger.exception("a connection could not be swept")
                    connection.transport.abort()
            await asyncio.sleep(0)
