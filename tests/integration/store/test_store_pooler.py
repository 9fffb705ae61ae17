"""A pooler before PostgreSQL that lends one session to several connections, as PgBouncer's transaction mode does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from router.db_command import upgrade_due
from router.store import faults
from router.store.database import StoreError, parse_url
from router.store.queries import Store

_HEAD = struct.Struct("!cI")


class Pooler:
    """Each client logs in on a session of its own. Then it uses the first client's (`shared`), or goes on with its own. It
    is told a process id that is no server process's, as by PgBouncer."""

    def __init__(self, port: int, *, shared: bool) -> None:
        self._port = port
        self._shared = shared
        self._sessions: list[asyncio.StreamWriter] = []
        self._asker: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, own = await asyncio.open_connection("127.0.0.1", self._port)
        self._sessions.append(own)
        first = self._sessions[0] if self._shared else own
        login = asyncio.create_task(_log_in(answers, client))
        if first is own:
            self._tasks.append(asyncio.create_task(self._answer(login, answers, client)))
        with suppress(OSError):
            while (data := await reader.read(65536)) and data[
                :1
            ] != b"X":  # the session outlives a client's farewell
                self._asker = client
                (first if login.done() else own).write(data)
        client.close()

    async def _answer(
        self, login: asyncio.Task[None], answers: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        await login
        while data := await answers.read(65536):
            asker = self._asker if self._shared else client
            assert asker is not None
            asker.write(data)

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
        await asyncio.gather(*self._tasks)


async def _log_in(answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    """Pass on the server's messages until it is ready for queries."""
    kind = b""
    while kind != b"Z":
        kind, size = _HEAD.unpack(await answers.readexactly(_HEAD.size))
        words = await answers.readexactly(size - 4)
        if kind == b"K":
            words = struct.pack("!I", 1) + words[4:]
        client.write(_HEAD.pack(kind, size) + words)


@asynccontextmanager
async def pooled(url: str, *, shared: bool) -> AsyncIterator[str]:
    """The URL of the same database behind a pooler."""
    parsed = parse_url(url)
    assert parsed.port is not None
    pooler = Pooler(parsed.port, shared=shared)
    async with await asyncio.start_server(pooler.serve, "127.0.0.1", 0) as server:
        through = parsed.set(port=server.sockets[0].getsockname()[1]).update_query_dict({"ssl": "disable"})
        yield through.render_as_string(hide_password=False)
        await pooler.close()


async def test_a_pooler_that_mixes_sessions_is_refused(postgres_url: str) -> None:
    async with pooled(postgres_url, shared=True) as url:
        with pytest.raises(StoreError, match="is behind a pooler in transaction mode"):
            await Store.open(url)
        with pytest.raises(StoreError, match="is behind a pooler in transaction mode"):
            await upgrade_due(url)


async def test_a_pooler_that_keeps_sessions_apart_is_used(postgres_url: str) -> None:
    async with pooled(postgres_url, shared=False) as url:
        store = await Store.open(url)
        await store.close()
        assert await upgrade_due(url) is None


async def test_a_pooler_in_statement_mode_is_refused_at_once(postgres_url: str) -> None:
    """PgBouncer ends a connection that begins a transaction."""
    parsed = parse_url(postgres_url)
    words = b"SFATAL\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"
    sessions: list[asyncio.Task[None]] = []

    async def pass_on(answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while True:
            head = await answers.readexactly(_HEAD.size)
            kind, size = _HEAD.unpack(head)
            content = await answers.readexactly(size - 4)
            if (kind, content) == (b"Z", b"T"):  # in a transaction
                client.write(_HEAD.pack(b"E", len(words) + 4) + words)
                client.close()
                return
            client.write(head + content)

    async def serve(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, own = await asyncio.open_connection("127.0.0.1", parsed.port)
        sessions.append(asyncio.create_task(pass_on(answers, client)))
        with suppress(OSError):
            while data := await reader.read(65536):
                own.write(data)
        own.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        through = parsed.set(port=server.sockets[0].getsockname()[1]).update_query_dict({"ssl": "disable"})
        with pytest.raises(StoreError, match="a pooler in statement mode allows no transactions"):
            await Store.open(through.render_as_string(hide_password=False), wait_s=30.0)
    await asyncio.gather(*sessions)


def test_a_mixed_up_statement_is_told_as_such() -> None:
    for error in (asyncpg.DuplicatePreparedStatementError("x"), asyncpg.InvalidSQLStatementNameError("x")):
        assert "transaction mode" in faults.error_name(error)
