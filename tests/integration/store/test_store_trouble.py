"""Databases on bad days: locked, gone for a while, gone for good."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.explain import describe
from router.store import database, queries
from router.store import retention as retention_module
from router.store.async_engine import AsyncConnection
from router.store.database import StoreError, create_engine, opened, parse_url
from router.store.queries import Store
from router.store.retention import Retention
from router.store.runs import Counts, Lost
from router.store.spool import Spool
from router.store.writer import Writer
from router.store.writer_process import WriterProcess, writer_settings
from tests.integration.store.test_store_outage import locked
from tests.records import make_record, put, runs_of, written
from tests.waiting import until


# --- locked and away ----------------------------------------------------------------------------------
async def test_a_locked_file_loses_nothing_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    monkeypatch.setattr(queries, "READ_FLUSH_S", 0.3)
    store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    async with locked(tmp_path / "headway.db"):
        for number in range(30):
            put(store, make_record(number))
        # Read from what waits.
        assert (await store.request("req_00000029", "team-a"))["instance"] == "gpu-1"
        assert [attempt["number"] for attempt in await store.attempts("req_00000029")] == [1]
        assert await store.explanation("req_00000029") is not None
        assert store.counts().pending == 30
        await until(lambda: store.counts().retries > 2)
        assert (store.away, store.fault) == (True, None)
        assert "the store accepts no records: another process has the file locked; they wait" in caplog.text
    await until(lambda: store.counts().pending == 0)
    assert len((await store.requests()).requests) == 30
    assert caplog.text.count("accepts no records") == caplog.text.count("accepts records again") == 1
    await store.close()


async def test_a_start_waits_for_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    await (await Store.open(url)).close()
    async with locked(tmp_path / "headway.db"):
        opening = asyncio.create_task(Store.open(url))
        await asyncio.sleep(0.5)  # a few tries in vain
        assert not opening.done()
    await (await opening).close()


async def test_what_waits_for_a_server_that_is_away_can_be_read(postgres: Any, postgres_url: str) -> None:
    store = await Store.open(postgres_url)
    put(store, make_record(0))
    await until(lambda: store.counts().pending == 0)
    async with postgres.away(crashed=False):
        put(store, make_record(1))
        row = await store.request("req_00000001", "team-a")
        assert row is not None
        described = await describe(store, row)
        assert (len(described["attempts"]), described["feedback"]) == (1, [])
        with pytest.raises(StoreError, match="does not answer"):
            await store.feedback("req_00000000")
    await until(lambda: store.counts().pending == 0)
    assert len((await store.requests()).requests) == 2
    await store.close()


async def test_a_server_that_hangs_is_told_without_waiting_for_a_long_query(
    postgres: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await Store.open(postgres_url)).close()
    store = Store(create_engine(parse_url(postgres_url)))
    assert await store.request("req_00000000", any_key=True) is None  # the pool has a connection now
    async with postgres.paused():
        monkeypatch.setattr(database, "CONNECT_TIMEOUT_S", 0.3)
        async with asyncio.timeout(10):
            with pytest.raises(StoreError, match="does not answer"):
                await store.request("req_00000000", any_key=True)
    await store.close()


async def test_a_full_buffer_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.writer.MAX_PENDING_RECORDS", 100)
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 50)
    url = parse_url(f"sqlite:///{tmp_path / 'headway.db'}")
    store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    engine = create_engine(url)
    counts = Counts("other", tmp_path / "other")
    assert store._file is not None
    process = WriterProcess(writer_settings(engine, store._file, counts.path))
    async with locked(tmp_path / "headway.db"):
        writer = Writer(process, counts, Spool(counts.path, 0))
        for number in range(130):
            writer.put(make_record(number))
        assert (counts.finished, counts.dropped, writer.pending) == (130, 30, 100)
        await until(lambda: writer.retries > 0)
    assert await writer.close() == 0
    assert writer.recorded == 100
    assert len((await store.requests()).requests) == 100
    counts.close(remove=True)
    await engine.dispose()
    await store.close()


async def test_a_database_that_stays_away_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 50)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    async with locked(tmp_path / "headway.db"):
        put(store, make_record(1))
        await store.close(timeout_s=0.2)
    again = await Store.open(url)  # writes what the last run could not write down
    assert again.counts().lost == Lost()
    assert await again.request("req_00000001", "team-a") is not None
    assert [(run["clean"], run["recorded"]) for run in await runs_of(again)] == [(False, 1), (None, 0)]
    await again.close()
    assert list(tmp_path.glob("*-run-*")) == []


async def test_a_wrong_password_is_one_line_without_it(postgres: Any) -> None:
    with pytest.raises(StoreError, match="cannot open the store") as refused:
        await Store.open(postgres.url("postgres", "hunter2"))
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_an_unreachable_server_is_one_line() -> None:
    with pytest.raises(StoreError, match="cannot open the store") as refused:
        await Store.open("postgresql://u:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refused.value)


async def test_a_process_that_lives_is_not_taken_for_dead(store_url: str) -> None:
    first = await Store.open(store_url)
    put(first, make_record(1))
    second = await Store.open(store_url)
    put(second, make_record(2))
    await second.close()
    await first.close()
    async with opened(store_url) as engine:
        assert [(run["clean"], run["recorded"]) for run in await runs_of(Store(engine))] == [
            (True, 1),
            (True, 1),
        ]


# --- retention ----------------------------------------------------------------------------------------
async def test_what_is_too_old_goes(store_url: str) -> None:
    store = await Store.open(store_url)
    now, day = 1_700_000_000.0, 86_400.0
    await written(
        store, (make_record(number, received_at=now - (20 - number / 100) * day) for number in range(1200))
    )
    assert await store.add_feedback("req_00000000", 1.0, "team-a")
    url = parse_url(store_url)
    engine = create_engine(url)
    retention = Retention(engine, retain_days=10, max_mb=None)
    assert await retention.prune(now) == 1000
    assert await retention.prune(now) == 0
    kept = (await store.requests(limit=1000)).requests
    assert [row["id"] for row in kept] == [f"req_{n:08d}" for n in reversed(range(1000, 1200))]
    assert await store.attempts("req_00000999") == []
    assert await store.explanation("req_00000999") is None
    assert await store.feedback("req_00000000") == []
    assert await store.explanation("req_00001000") is not None
    await engine.dispose()
    await store.close()


async def test_what_is_too_much_goes_oldest_first(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = retention_module._postgres_live_bytes

    async def counting(connection: AsyncConnection) -> tuple[float, int]:
        measured.append(await measure(connection))
        return measured[-1]

    monkeypatch.setattr(retention_module, "_postgres_live_bytes", counting)
    monkeypatch.setattr(retention_module, "BATCH_REQUESTS", 50)
    store = await Store.open(store_url)
    await written(store, (make_record(number) for number in range(4000)))
    url = parse_url(store_url)
    engine = create_engine(url)
    retention = Retention(engine, retain_days=None, max_mb=1)
    removed = await retention.prune(0.0)
    assert 0 < removed < 4000
    kept = (await store.requests(limit=1000)).requests
    assert kept[0]["id"] == "req_00003999"
    assert len(measured) <= 4
    assert await retention.prune(0.0) == 0  # small enough now
    assert await store.request(f"req_{removed:08d}", "team-a") is not None
    assert await store.request(f"req_{removed - 1:08d}", "team-a") is None
    await engine.dispose()
    await store.close()
    if url.get_backend_name() == "sqlite":
        assert (tmp_path / "headway.db").stat().st_size < 3 * 1024 * 1024  # given back to the file system


async def test_the_file_shrinks_by_many_pages_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    ask = retention_module._pragma

    async def asked(connection: AsyncConnection, name: str) -> int:
        found = await ask(connection, name)
        if name == "freelist_count":
            sizes.append(found)
        return found

    monkeypatch.setattr(retention_module, "_pragma", asked)
    monkeypatch.setattr(retention_module, "_PAUSE_S", 0.0)
    store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    await written(store, (make_record(number, received_at=1000.0 + number) for number in range(1500)))
    retention = Retention(store._engine, retain_days=1, max_mb=None)
    assert await retention.prune(1_000_000.0) == 1500
    await store.close()
    step = retention_module._VACUUM_PAGES
    assert sizes[0] > 3 * step
    assert [a - b for a, b in pairwise(sizes)] == [step] * (len(sizes) - 1)
    assert sizes[-1] < step


async def test_the_size_of_postgresql_is_estimated_from_some_pages(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(postgres_url)
    await written(store, (make_record(number) for number in range(6000)))
    async with store._engine.connect() as connection:
        every, requests = await retention_module._postgres_live_bytes(connection)
        assert requests == 6000
        monkeypatch.setattr(retention_module, "_SAMPLE_PAGES", 100)
        estimates = [await retention_module._postgres_live_bytes(connection) for _ in range(2)]
    await store.close()
    assert estimates[0] == estimates[1] != (every, requests)
    assert estimates[0][0] == pytest.approx(every, rel=0.3)
    assert estimates[0][1] == pytest.approx(requests, rel=0.3)


async def test_an_open_store_prunes_by_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    put(store, make_record(1, received_at=1000.0))
    await store.close()
    store = await Store.open(url, retain_days=1, max_mb=100)
    for _ in range(3000):
        if await store.request("req_00000001", "team-a") is None:
            break
        await asyncio.sleep(0.01)
    assert (await store.requests()).requests == []
    await store.close()
