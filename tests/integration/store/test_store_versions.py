"""Versions of the tables: reached from nothing and from before, by one process or several, refused when too new."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from router.cli import main
from router.store import schema, tables
from router.store.database import StoreError, create_engine, opened, parse_url
from router.store.entries import REQUEST_COLUMNS
from router.store.queries import Store
from router.store.records import request_row
from router.store.spend_report import spend_report
from tests.records import make_record, runs_of

FLEET = """
store: {{url: "{url}", password_env: {variable}}}
models: [{{name: m}}]
instances: [{{name: a, kind: vllm, url: "http://127.0.0.1:9", serves: {{m: m}}}}]
"""


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[AsyncEngine]:
    made = create_engine(parse_url(store_url))
    yield made
    await made.dispose()


def test_the_program_knows_its_own_versions() -> None:
    script = ScriptDirectory(str(Path(schema.__file__).with_name("migrations")))
    found = [each.revision for each in script.walk_revisions()]
    assert tuple(reversed(found)) == schema.VERSIONS


@pytest.mark.parametrize("before", [(), ("runs",)], ids=["from nothing", "by every version"])
async def test_the_versions_lead_to_the_tables_of_the_program(
    engine: AsyncEngine, before: tuple[str, ...]
) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, tables.metadata))

    async with engine.begin() as connection:
        made = [tables.metadata.tables[name] for name in before]
        await connection.run_sync(lambda sync: tables.metadata.create_all(sync, tables=made))
    await schema.upgrade(engine)
    await schema.upgrade(engine)
    async with engine.connect() as connection:
        assert await connection.run_sync(schema.version) == schema.NEWEST
        assert await connection.run_sync(differences) == []


async def test_a_database_from_before_keeps_its_rows(engine: AsyncEngine, store_url: str) -> None:
    before = [table for table in tables.metadata.sorted_tables if table.name not in {"spend", "keys"}]
    made = [
        make_record(n, received_at=86_400.0 * (1 + n // 4) - 1e-3, cost_usd=None if n == 3 else 0.25 * n)
        for n in range(8)
    ]
    made[5].key_name = made[5].policy = made[5].model = None
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: tables.metadata.create_all(sync, tables=before))
        rows = [dict(zip(REQUEST_COLUMNS, request_row(record), strict=True)) for record in made]
        await connection.execute(insert(tables.requests), rows)
    with pytest.raises(StoreError, match="is at no version, this program reads"):
        await opened(store_url).__aenter__()

    store = await Store.open(store_url)
    assert [row["id"] for row in (await store.requests()).requests] == [
        f"req_{n:08d}" for n in reversed(range(8))
    ]
    assert (await spend_report(store, ["day", "key"])).rows == [
        {"day": "1970-01-01", "key": "team-a", "requests": 4, "prompt_tokens": 480, "output_tokens": 320, "cost_usd": 0.75},
        {"day": "1970-01-02", "key": "", "requests": 1, "prompt_tokens": 120, "output_tokens": 80, "cost_usd": 1.25},
        {"day": "1970-01-02", "key": "team-a", "requests": 3, "prompt_tokens": 360, "output_tokens": 240, "cost_usd": 4.25},
    ]  # fmt: skip
    assert (await store.spent(by_run=True))["team-a", "total"] == {"before": 5.0}
    await store.close()


async def test_others_may_write_while_rows_are_added_up(postgres_url: str) -> None:
    engine = create_engine(parse_url(postgres_url))
    before = [table for table in tables.metadata.sorted_tables if table.name not in {"spend", "keys"}]
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))

    def upgraded(connection: Connection) -> set[str]:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        query = "SELECT mode FROM pg_locks WHERE relation = 'requests'::regclass AND pid = pg_backend_pid()"
        return set(connection.execute(text(query)).scalars())

    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: tables.metadata.create_all(sync, tables=before))
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT 1"))  # begins the transaction, as an upgrade does
            assert await connection.run_sync(upgraded) == {"AccessShareLock"}
    finally:
        await engine.dispose()


async def test_older_tables_get_the_newer_columns(engine: AsyncEngine, store_url: str) -> None:
    await schema.upgrade(engine)
    added = ("min_quality", "on_miss", "priority")
    async with engine.begin() as connection:
        row = dict(zip(REQUEST_COLUMNS, request_row(make_record(1)), strict=True))
        await connection.execute(insert(tables.requests), [row])
        for name in added:
            await connection.execute(text(f"ALTER TABLE requests DROP COLUMN {name}"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    store = await Store.open(store_url)
    store.writer.put(make_record(2, min_quality=0.5, on_miss="reject", priority=-3))
    assert await store.writer.flush(10.0)
    newer, older = (await store.requests()).requests
    assert [newer[name] for name in added] == [0.5, "reject", -3]
    assert [older[name] for name in added] == [None] * 3
    await store.close()


async def test_new_tables_are_said_to_be_created(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "router.store.schema"):
        await schema.upgrade(engine)
    assert caplog.messages == [f"the store's tables were created at version {schema.NEWEST}"]


async def test_a_database_of_a_newer_program_is_refused(engine: AsyncEngine, store_url: str) -> None:
    await schema.upgrade(engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for opening in (Store.open(store_url), opened(store_url).__aenter__()):
        with pytest.raises(StoreError, match="was made by a newer version of Headway") as refused:
            await opening
        assert "\n" not in str(refused.value)


OPEN = """
import asyncio, sys
from pathlib import Path
from router.store.queries import Store

async def main():
    sys.stdin.readline()
    store = await Store.open(sys.argv[1])
    await store.close()

asyncio.run(main())
"""


async def test_processes_that_start_at_once_take_turns(store_url: str) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, store_url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    told = await asyncio.gather(*(asyncio.to_thread(each.communicate, b"go\n", 60) for each in started))
    assert [(each.returncode, error) for each, (_, error) in zip(started, told, strict=True)] == [
        (0, b"")
    ] * 2
    async with opened(store_url) as engine:
        assert [run["clean"] for run in await runs_of(Store(engine))] == [True] * 2


async def test_an_upgrade_that_a_reader_blocks_blocks_no_others_for_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_TABLE_WAIT_S", 0.1)
    engine = create_engine(parse_url(postgres_url))
    await schema.upgrade(engine)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE requests DROP COLUMN priority"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    async with engine.connect() as reader:
        await reader.execute(text("SELECT count(*) FROM requests"))
        with pytest.raises(StoreError, match="lock timeout"):
            await Store.open(postgres_url)
        opening = asyncio.create_task(Store.open(postgres_url, wait_s=30))
        await asyncio.sleep(0.3)
        assert not opening.done()
    await (await opening).close()
    await engine.dispose()


def test_operators_upgrade_by_hand(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = parse_url(store_url)
    monkeypatch.setenv("STORE_PASSWORD", url.password or "none")
    fleet = tmp_path / "fleet.yaml"
    public = url._replace(password=None).render_as_string()
    password_env = "null" if url.password is None else "STORE_PASSWORD"
    fleet.write_text(FLEET.format(url=public, variable=password_env), encoding="utf-8")

    def headway(*words: str) -> tuple[int, str]:
        code = main([*words, "--config", str(fleet)])
        told = capsys.readouterr()
        return code, (told.out + told.err).strip()

    if url.get_backend_name() == "sqlite":
        code, told = headway("db", "version")
        assert (code, told) == (2, f"headway db: no database at {tmp_path / 'headway.db'}")
        (tmp_path / "headway.db").touch()
    due = "are at no version, the newest is 0003"
    found = headway("db", "version")
    assert found == (0, "the tables are at no version; the newest is 0003: run headway db upgrade")
    assert due in headway("check")[1]
    assert headway("db", "upgrade") == (0, "the tables were created at version 0003")
    assert headway("db", "upgrade") == (0, "the tables are at version 0003, the newest")
    seen = headway("db", "version", "--json")
    assert seen == (0, '{"version": "0003", "before": "0003", "newest": "0003"}')
    assert due not in headway("check")[1]
