"""Pooled connections: reuse, expiry, and clean-up."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends import json_calls
from backends.connection import HIGH_WATER_BYTES
from backends.http1 import Origin, hide_secrets, request_head, secrets_in
from backends.json_calls import json_answer
from backends.kinds import KINDS
from backends.pool import Pool
from backends.scanning import Connection, Post
from router.core.errors import OutOfSockets, UpstreamError, UpstreamRejected
from router.logs import current_request
from tests.contract.backends.fakes import Exchange, FakeEngine, Script


async def hello(exchange: Exchange) -> None:
    await exchange.answer(200, b'{"hello": %b}' % exchange.body)


def pool_for(engine: FakeEngine, idle_connection_s: float = 2.0, drain_s: float = 2.0) -> tuple[Pool, bytes]:
    origin = Origin.parse(engine.url)
    return Pool(origin, idle_connection_s=idle_connection_s, drain_s=drain_s), request_head(origin, "/x", {})


@asynccontextmanager
async def pooled(script: Script, **settings: float) -> AsyncIterator[tuple[FakeEngine, Pool, bytes]]:
    """An engine that follows the script, and a pool and the head of a request for it."""
    async with FakeEngine(script) as engine:
        pool, head = pool_for(engine, **settings)
        yield engine, pool, head
        await pool.aclose()


async def ask(pool: Pool, head: bytes, body: Any = None) -> Any:
    """The engine's answer, an object."""
    return await json_answer(pool, head, "r", body)


class Opened(Post):
    """A POST whose answer the test reads by itself."""

    def __init__(self, pool: Pool, head: bytes) -> None:
        super().__init__(pool, head, "r", {}, self)
        self.connection: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def _opened(self, connection: Connection) -> None:
        connection.listener = None
        self.connection.set_result(connection)

    def sent(self) -> None: ...

    def ended(self, answer: dict[str, Any] | None) -> None: ...

    def failed(self, error: Exception) -> None:
        self.connection.set_exception(error)


async def post(pool: Pool, head: bytes) -> Connection:
    """The connection on which the head of an answer has come."""
    opened = Opened(pool, head)
    opened.start()
    return await opened.connection


async def test_the_freshest_idle_connection_is_used() -> None:
    async with pooled(hello) as (engine, pool, head):
        answers = await asyncio.gather(*(ask(pool, head, i) for i in range(5)))
        assert answers == [{"hello": i} for i in range(5)]
        assert (engine.connections, pool.idle_connections, pool.busy_connections) == (5, 5, 0)
        for _ in range(4):
            await ask(pool, head)
        last = engine.requests[-4:]
        assert len({id(exchange.writer) for exchange in last}) == 1


async def test_idle_connections_are_closed_by_the_sweep() -> None:
    async with pooled(hello, idle_connection_s=0.1) as (engine, pool, head):
        await ask(pool, head)
        assert pool.idle_connections == 1
        await asyncio.wait_for(engine.disconnects.wait(), 5)
        assert pool.idle_connections == 0
        assert await ask(pool, head) == {"hello": None}  # the sweep starts again with the next connection
        engine.disconnects.clear()
        await asyncio.wait_for(engine.disconnects.wait(), 5)


async def test_bytes_nobody_asked_for_close_the_connection() -> None:
    async def twice(exchange: Exchange) -> None:
        await hello(exchange)
        await asyncio.sleep(0.02)
        await exchange.raw(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")

    async with pooled(twice) as (_, pool, head):
        assert await ask(pool, head) == {"hello": None}
        await asyncio.sleep(0.1)
        assert pool.idle_connections == 0
        assert await ask(pool, head) == {"hello": None}


@pytest.mark.parametrize("silent", [False, True])
async def test_a_released_answer_that_goes_on_or_falls_silent_is_dropped(silent: bool) -> None:
    async def unended(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.chunk(b"x" * 65536)
            await asyncio.sleep(30 * silent)

    settings = {"idle_connection_s": 0.2, "drain_s": 0.1} if silent else {}
    async with pooled(unended, **settings) as (engine, pool, head):
        (await post(pool, head)).release()
        await asyncio.wait_for(engine.disconnects.wait(), 5)
        assert (pool.idle_connections, pool.busy_connections) == (0, 0)


async def test_after_an_answer_with_a_long_rest_the_next_one_is_read() -> None:
    rest = b"x" * (HIGH_WATER_BYTES // 2 - 100)

    async def script(exchange: Exchange) -> None:
        if exchange.number:
            await hello(exchange)
            return
        await exchange.head()
        for _ in range(2):
            await asyncio.sleep(0.05)
            await exchange.chunk(rest)
        await asyncio.sleep(0.05)
        # It ends in the read that passes the mark.
        await exchange.raw(b"c8\r\n%b\r\n0\r\n\r\n" % (b"x" * 200))

    async with pooled(script) as (engine, pool, head):
        (await post(pool, head)).release()
        while not pool.idle_connections:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(ask(pool, head), 5) == {"hello": None}
        assert engine.connections == 1


async def test_a_closed_connection_is_let_go_at_once() -> None:
    """The collector runs too rarely to wait for it."""
    async with pooled(hello, idle_connection_s=0.1) as (engine, pool, head):
        gc.collect()
        gc.disable()
        try:
            await ask(pool, head)
            await asyncio.wait_for(engine.disconnects.wait(), 5)
            await asyncio.sleep(0)
            assert not [each for each in gc.get_objects() if isinstance(each, Connection)]
        finally:
            gc.enable()


async def test_a_connection_belongs_to_no_request_s_log() -> None:
    """It outlives the request that made it, and what it reports may be of another one."""
    async with pooled(hello) as (_, pool, head):
        seen: list[str | None] = []

        class Heard(Opened):
            def _opened(self, connection: Connection) -> None:
                seen.append(current_request.get())
                super()._opened(connection)

        current_request.set("the first")
        opened = Heard(pool, head)
        opened.start()
        (await opened.connection).abort()
        assert seen == [None]


async def test_an_answer_that_ends_after_the_pool_closed() -> None:
    async with FakeEngine(hello) as engine:
        pool, head = pool_for(engine)
        connection = await post(pool, head)
        await pool.aclose()
        connection.release()
        assert pool.idle_connections == 0


async def test_a_second_answer_to_one_request_is_never_taken_for_the_next() -> None:
    async def doubled(exchange: Exchange) -> None:
        body = b'{"n":%d}' % exchange.number
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n" + body
        await exchange.raw(answer + (answer if exchange.number == 0 else b""))

    async with pooled(doubled) as (_, pool, head):
        with pytest.raises(UpstreamError, match="not valid HTTP"):
            await ask(pool, head)
        assert await ask(pool, head) == {"n": 1}


async def test_a_body_over_the_limit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pooled(hello) as (_, pool, head):
        monkeypatch.setattr(json_calls, "MAX_BODY_BYTES", 100_000)
        with pytest.raises(UpstreamError, match="too large"):
            await ask(pool, head, "x" * 200_000)


async def test_a_fault_while_an_answer_is_read_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(json_calls.bounded_json, "loads", fault)
    async with pooled(hello) as (_, pool, head):
        with pytest.raises(MemoryError):
            await asyncio.wait_for(ask(pool, head), 5)


async def test_closing_fails_readers_and_refuses_new_work() -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    async with FakeEngine(silent) as engine:
        pool, head = pool_for(engine)
        asking = asyncio.create_task(ask(pool, head))
        await engine.asked.wait()
        await pool.aclose()
        with pytest.raises(UpstreamError):
            await asking
        with pytest.raises(UpstreamError, match="closed"):
            await post(pool, head)


@pytest.mark.parametrize(
    ("url", "authority", "prefix"),
    [
        ("http://h:8000", "h:8000", ""),
        ("http://h:8000/v1/", "h:8000", ""),
        ("https://h/api/v1", "h", "/api"),
        ("http://[::1]:80", "[::1]", ""),
        ("https://h:8443/x/", "h:8443", "/x"),
    ],
)
def test_origins(url: str, authority: str, prefix: str) -> None:
    origin = Origin.parse(url)
    assert (origin.authority, origin.prefix) == (authority, prefix)
    head = request_head(origin, "/v1/models", {}).decode()
    assert head.startswith(f"POST {prefix}/v1/models HTTP/1.1\r\nhost: {authority}\r\n")


@pytest.mark.parametrize(
    ("kind", "url", "chat", "models"),
    [
        ("openai", "https://h", "/v1/chat/completions", "/v1/models"),
        ("openai", "https://h/v1/", "/v1/chat/completions", "/v1/models"),
        ("openai", "https://h/api/v1", "/api/v1/chat/completions", "/api/v1/models"),
        ("openai", "https://h/v1beta/openai/", "/v1beta/openai/chat/completions", "/v1beta/openai/models"),
        ("openai", "https://h/v1/openai", "/v1/openai/chat/completions", "/v1/openai/models"),
        ("openai", "https://h/inference", "/inference/chat/completions", "/inference/models"),
        ("vllm", "https://h/llama", "/llama/v1/chat/completions", "/llama/v1/models"),
    ],
)
def test_the_paths_of_an_engine(kind: str, url: str, chat: str, models: str) -> None:
    origin = Origin.parse(url, base=KINDS[kind].takes_base_url)
    assert (origin.target("/v1/chat/completions"), origin.target("/v1/models")) == (chat, models)
    assert request_head(origin, "/v1/models", {}).startswith(f"POST {models} ".encode())


@pytest.mark.parametrize("url", ["h:80", "ftp://h", "http://", "http://h:99999"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError):
        Origin.parse(url)


@pytest.mark.parametrize(("value", "reason"), [("a\r\nevil: 1", "line break"), ("\u20ac", "not Latin-1")])
def test_headers_cannot_break_out(value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"a header holds a .*{reason}"):
        request_head(Origin.parse("http://h"), "/", {"x": value})


def test_an_operators_header_replaces_ours_and_is_hidden() -> None:
    headers = {
        "host": "models.internal",
        "user-agent": "agent-of-ours",
        "authorization": "Bearer sk-0123456789",
    }
    head = request_head(Origin.parse("http://h"), "/v1/models", headers)
    assert head.decode().split("\r\n") == [
        "POST /v1/models HTTP/1.1",
        "host: models.internal",
        "content-type: application/json",
        "accept: text/event-stream, application/json",
        "user-agent: agent-of-ours",
        "authorization: Bearer sk-0123456789",
        "x-request-id: ",
    ]
    assert secrets_in(head) == ["agent-of-ours", "sk-0123456789"]
    for key in ("sk-0123456789", "sk-012345"):  # the second one as a message that was cut ends
        error = UpstreamRejected(f"wrong key: {key}", param=key, code=key)
        hide_secrets(error, head)
        assert (str(error), error.param, error.code) == ("wrong key: ***", "***", "***")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_gateway_without_files_blames_no_engine(host: str) -> None:
    async with FakeEngine(hello) as engine:
        origin = Origin.parse(engine.url.replace("127.0.0.1", host))
        pool, head = Pool(origin), request_head(origin, "/x", {})
        socket.getaddrinfo(host, 80)  # loads what a lookup needs
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(OutOfSockets) as failed:
                await ask(pool, head)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not failed.value.unreachable
        assert await ask(pool, head) == {"hello": None}
        await pool.aclose()


async def test_a_dead_address_of_a_name_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers at the first address; the second one refuses, and the engine is at the third."""
    loop = asyncio.get_running_loop()
    connect, tried = loop.sock_connect, []

    def found(host: str, port: int, *, flags: int = 0, **_: Any) -> list[Any]:
        assert host == "engines.internal"
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        hosts = ("192.0.2.1", "192.0.2.2", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    async def connecting(sock: socket.socket, address: Any) -> None:
        tried.append((address[0], loop.time() - began))
        if address[0] == "192.0.2.1":
            await asyncio.Event().wait()
        if address[0] == "192.0.2.2":
            raise ConnectionRefusedError
        await connect(sock, address)

    async with FakeEngine(hello) as engine:
        origin = Origin.parse(engine.url.replace("127.0.0.1", "engines.internal"))
        pool, began = Pool(origin), loop.time()
        monkeypatch.setattr(socket, "getaddrinfo", found)
        monkeypatch.setattr(loop, "sock_connect", connecting)
        (await pool.connect()).abort()
        assert tried == [("192.0.2.1", 0.0), ("192.0.2.2", 0.25), ("127.0.0.1", 0.25)]
        await pool.aclose()


@pytest.mark.real_time
async def test_names_whose_lookup_hangs_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, asked, look_up = threading.Event(), Counter[str](), socket.getaddrinfo

    def found(host: str, port: int, *, flags: int = 0, **settings: Any) -> list[Any]:
        if host.endswith(".internal") and not flags & socket.AI_NUMERICHOST:
            asked[host] += 1
            answered.wait(60)
        return look_up(host, port, flags=flags, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    hosts = [f"{number}.internal" for number in range(40)]  # more than a loop has threads
    pools = [Pool(Origin.parse(f"http://{host}"), connect_timeout_s=0.2) for host in hosts]
    async with FakeEngine(hello) as engine:
        hanging = await asyncio.gather(*(each.connect() for each in pools * 2), return_exceptions=True)
        assert {str(each) for each in hanging} == {"no connection to the engine in time"}
        assert asked == Counter(hosts)  # one lookup of a name at a time
        pool = Pool(Origin.parse(engine.url.replace("127.0.0.1", "localhost")), connect_timeout_s=5.0)
        (await pool.connect()).abort()
        for each in (pool, *pools):
            await each.aclose()
    answered.set()


@pytest.mark.real_time
async def test_a_gateway_without_threads_blames_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    pool = Pool(Origin.parse("http://localhost:1"))
    with pytest.raises(OutOfSockets):
        await pool.connect()
    await pool.aclose()


async def test_an_engine_that_is_not_there_is_unreachable() -> None:
    async with FakeEngine(hello) as engine:
        pool, head = pool_for(engine)
    with pytest.raises(UpstreamError) as failed:
        await ask(pool, head)
    assert failed.value.unreachable
    await pool.aclose()
