"""Calls to an engine that are not part of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from backends.control import MAX_ANSWER_BYTES, Control
from backends.http1 import Origin
from router.core.errors import UpstreamError, UpstreamTimeout


@asynccontextmanager
async def controlled(
    answers: Iterator[bytes | None], heads: list[bytes], timeout_s: float = 5.0
) -> AsyncIterator[Control]:
    """A control over an engine that answers with these bytes in turn; None closes the connection instead."""

    handlers: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                answer = next(answers)
                if answer is None:
                    break
                writer.write(answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    origin = Origin.parse(f"http://127.0.0.1:{port}/base")
    control = Control(origin, headers={"authorization": "Bearer k"}, tls=None, timeout_s=timeout_s)
    async with server:
        yield control
        await control.aclose()
        await asyncio.gather(*filter(None, handlers))


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_get_has_the_operators_headers_and_no_packed_answer() -> None:
    heads: list[bytes] = []
    async with controlled(iter([ok(b"x 1\n")]), heads) as control:
        assert await control.get("/metrics") == (200, b"x 1\n")
    first, *lines = heads[0].decode().split("\r\n")
    assert first == "GET /base/metrics HTTP/1.1"
    assert {"authorization: Bearer k", "accept-encoding: identity"} <= set(lines)


async def test_an_idle_connection_that_the_engine_has_closed_is_replaced() -> None:
    heads: list[bytes] = []
    async with controlled(iter([ok(b"1"), None, ok(b"2")]), heads) as control:
        assert await control.get("/a") == (200, b"1")
        assert await control.get("/b") == (200, b"2")
    assert [head.split()[1] for head in heads] == [b"/base/a", b"/base/b", b"/base/b"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: None, UpstreamError),
        (lambda: b"", UpstreamTimeout),
        (lambda: ok(b"x" * (MAX_ANSWER_BYTES + 1)), UpstreamError),
        (lambda: b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", UpstreamTimeout),
        (lambda: b"no HTTP\r\n\r\n", UpstreamError),
    ],
    ids=["closed", "silent", "too large", "half", "other protocol"],
)
async def test_without_an_answer_in_time_it_fails(
    answer: Callable[[], bytes | None], expected: type[UpstreamError]
) -> None:
    async with controlled(iter([answer()]), [], timeout_s=0.3) as control:
        with pytest.raises(expected):
            await control.get("/metrics")


async def test_only_a_200_passes_the_check() -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"
    async with controlled(iter([ok(b""), moved, None]), []) as control:
        await control.check("/health")
        with pytest.raises(UpstreamError, match="the engine answers 302 to /health"):
            await control.check("/health")
