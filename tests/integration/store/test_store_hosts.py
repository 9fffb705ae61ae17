"""A PostgreSQL server that is one of several hosts, or that is not yet the primary."""

from __future__ import annotations

import asyncio
import secrets
import socket
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from router.store import database
from router.store.commits import Commits, Run, Written
from router.store.database import create_engine, parse_url
from router.store.postgres_commits import PostgresDatabase
from router.store.queries import Store
from router.store.writer_process import writer_settings
from tests.records import entry_of, make_record
from tests.servers.postgres import PostgresServer
from tests.waiting import until


def hosts(url: str, *before: int) -> str:
    """The URL of a server that is the last of several hosts. Those before it are ports of this machine."""
    parsed = parse_url(url)
    every = [f"127.0.0.1:{port}" for port in (*before, parsed.port)]
    made = URL.create(parsed.drivername, parsed.username, parsed.password, database=parsed.database)
    return made.update_query_dict({"host": every}).render_as_string(hide_password=False)


async def test_a_host_that_does_not_answer_leaves_time_for_the_next(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CONNECT_TIMEOUT_S", 4.0)
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        url = hosts(postgres_url, frozen.getsockname()[1])
        store = await Store.open(url)
        await store.close()


@pytest.mark.parametrize("wanted", ["any", "read-write"])
async def test_a_start_waits_for_a_primary(
    postgres: PostgresServer, postgres_url: str, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that only reads, as a standby before its promotion."""
    name = parse_url(postgres_url).database
    await postgres.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    url = f"{hosts(postgres_url)}&target_session_attrs={wanted}"
    opening = asyncio.create_task(Store.open(url, wait_s=30.0))
    await until(lambda: "waiting up to 30 s" in caplog.text or opening.done())
    await postgres.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    store = await opening
    await store.close()
    assert "does not answer yet" in caplog.text


def test_a_value_too_large_for_an_index_is_refused_alone(postgres_url: str) -> None:
    async def prepared() -> dict[str, object]:
        store = await Store.open(postgres_url)
        await store.close()
        return writer_settings(create_engine(parse_url(postgres_url)), None, Path("run"))

    settings = asyncio.run(prepared())
    server = PostgresDatabase(settings["connect"])  # type: ignore[arg-type]
    batch = []
    for number in range(5):
        record = make_record(number, received_at=86_400.0)
        if number == 2:
            record.id = secrets.token_hex(8000)
        batch.append(entry_of(record))
    assert Commits(server).write(Run("run"), batch) == Written(new=4, refused=1)
    server.abandon()
    server._runner.close()
