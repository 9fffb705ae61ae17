"""Databases that go away under load, and processes that are killed meanwhile: every row comes once, none is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from router.core.types import Outcome
from router.store import queries, spool, tables, writer, writer_process
from router.store.database import StoreError, create_engine, opened, parse_url
from router.store.queries import Store
from router.store.retention import _LOCK, Retention
from router.store.runs import Counts, Lost
from router.store.spend_report import spend_report
from router.store.writer import record_line
from tests.records import make_record, put, runs_of, written
from tests.servers.postgres import PostgresServer
from tests.waiting import until


async def rows_of(engine: AsyncEngine) -> list[tuple[str, float | None]]:
    async with engine.connect() as connection:
        query = select(tables.requests.c.id, tables.requests.c.cost_usd).order_by(tables.requests.c.id)
        return [(row.id, row.cost_usd) for row in await connection.execute(query)]


async def everything_is_there(url: str, ids: set[str], *, but: int = 0) -> list[dict[str, Any]]:
    """Every id has its row and what belongs to it, and spending agrees. `but`: so many ids may be missing. Gives the
    runs."""
    engine = create_engine(parse_url(url))
    store = Store(engine)
    try:
        rows = await rows_of(engine)
        assert len(rows) == len(ids) - but
        assert {row[0] for row in rows} <= ids
        async with engine.connect() as connection:
            for table in (tables.attempts, tables.explanations):
                found = set(await connection.scalars(select(table.c.request_id)))
                assert found == {row[0] for row in rows}
        sums = (await spend_report(store, [])).total
        assert sums["requests"] == len(rows)
        assert sums["cost_usd"] == pytest.approx(sum(row[1] or 0.0 for row in rows), rel=1e-12)
        return await runs_of(store)
    finally:
        await engine.dispose()
        await store.close()


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """A SQLite file that another process writes to."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# --- away ---------------------------------------------------------------------------------------------
async def test_a_server_that_crashes_under_load_loses_nothing(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 100_000)
    store = await Store.open(postgres_url)
    ids: set[str] = set()
    most_in_memory = 0

    async def load(count: int) -> None:
        nonlocal most_in_memory
        for _ in range(count // 20):
            for _ in range(20):
                record = make_record(len(ids), cost_usd=0.001 * len(ids))
                ids.add(record.id)
                put(store, record)
            most_in_memory = max(most_in_memory, store.counts().pending - store.counts().spooled)
            await asyncio.sleep(0.005)

    running = asyncio.create_task(load(4000))
    await until(lambda: store.counts().recorded > 200)
    async with postgres.away():
        await running
        await until(lambda: store.counts().pending == store.counts().spooled)
        newest = f"req_{len(ids) - 1:08d}"
        # Read from memory, at once.
        assert (await store.request(newest, "team-a"))["instance"] == "gpu-1"
        with pytest.raises(StoreError, match="does not answer"):
            await store.request("req_00000000", "team-a")
        counts = store.counts()
        assert counts.spooled > 2000
        assert counts.spooled_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.spool"))
        assert not store.full
    await load(400)  # while what waited is being written
    await until(lambda: store.counts().pending == 0)
    assert most_in_memory < 1000
    assert (store.counts().dropped, store.counts().recorded) == (0, len(ids))
    await store.close()
    assert list(tmp_path.iterdir()) == []
    runs = await everything_is_there(postgres_url, ids)
    assert [(run["clean"], run["recorded"]) for run in runs] == [(True, len(ids))]


async def test_a_server_that_stops_answering_loses_nothing(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_process, "COMMIT_TIMEOUT_S", 0.5)
    store = await Store.open(postgres_url)
    ids: set[str] = set()

    def put_some() -> None:
        for _ in range(50):
            record = make_record(len(ids))
            ids.add(record.id)
            put(store, record)

    put_some()
    await until(lambda: store.counts().pending == 0)
    async with postgres.paused():
        put_some()  # is on its way when it does not get an answer
        await until(lambda: store.counts().spooled == 50)
        put_some()
        await until(lambda: store.counts().retries > 0)
        await until(lambda: store.counts().spooled == 100)
    put_some()
    await until(lambda: store.counts().pending == 0)
    await store.close()
    await everything_is_there(postgres_url, ids)


async def test_a_server_that_stopped_answering_does_not_hold_up_the_end(
    postgres: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writer, "_END_TIMEOUT_S", 0.2)
    store = await Store.open(postgres_url)
    async with postgres.paused():
        for number in range(50):
            put(store, make_record(number))
        async with asyncio.timeout(30):
            await store.close(timeout_s=0.5)
    assert not any(record.exc_info for record in caplog.records)
    again = await Store.open(postgres_url)
    assert again.counts().lost == Lost()
    await again.close()
    await everything_is_there(postgres_url, {f"req_{number:08d}" for number in range(50)})


async def test_a_server_that_stopped_answering_does_not_hold_up_a_command(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = opened(postgres_url, create=True)
    await command.__aenter__()
    async with postgres.paused():
        async with asyncio.timeout(10):
            await command.__aexit__(None, None, None)
        monkeypatch.setattr("router.store.database.CONNECT_TIMEOUT_S", 0.2)
        with pytest.raises(StoreError, match="no answer in time"):
            await opened(postgres_url).__aenter__()


async def test_a_server_that_stopped_answering_does_not_hold_up_the_end_of_pruning(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(postgres_url)
    engine = create_engine(url)
    retention = Retention(engine, retain_days=1, max_mb=None)
    begun = asyncio.Event()

    async def prune(now: float) -> int:
        begun.set()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(retention, "prune", prune)
    pruning = asyncio.create_task(retention.prune_alone(0.0))
    await begun.wait()
    async with postgres.paused():
        pruning.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait({pruning})
    await engine.dispose()


async def test_a_server_that_starts_later_is_waited_for(postgres: PostgresServer, postgres_url: str) -> None:
    await asyncio.to_thread(postgres.stop)
    opening = asyncio.create_task(Store.open(postgres_url, wait_s=60))
    await asyncio.sleep(0.3)  # a few tries in vain
    assert not opening.done()
    await asyncio.to_thread(postgres.start)
    store = await opening
    await store.close()


async def test_a_server_that_was_read_only_takes_writes_again(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A session keeps the setting with which it began, so the pool's must end."""
    name = parse_url(postgres_url).database
    store = await Store.open(postgres_url)
    put(store, make_record(1))
    await postgres.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname <> 'postgres'"
    )
    with pytest.raises(StoreError, match="ReadOnlySQLTransactionError"):
        await store.add_feedback("req_00000001", 0.5, "team-a")
    await postgres.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert await store.add_feedback("req_00000001", 0.5, "team-a") == 1
    await store.close()


async def test_a_new_connection_waits_for_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite file has one writer at a time, and readers beside it."""
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    put(store, make_record(1))
    await store.close()
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 0)
    async with locked(tmp_path / "headway.db"), opened(url) as engine:
        assert await Store(engine).request("req_00000001", any_key=True) is not None


# --- full ---------------------------------------------------------------------------------------------
async def test_a_full_spool_is_told_and_what_is_dropped_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    monkeypatch.setattr(queries, "READ_FLUSH_S", 0.2)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    directory = tmp_path / "elsewhere" / "spool"
    store = await Store.open(url, spool_directory=directory, spool_mb=0.1)
    monkeypatch.setattr(writer, "MAX_PENDING_RECORDS", 200)
    ids: set[str] = set()
    assert directory.stat().st_mode & 0o777 == 0o700
    async with locked(tmp_path / "headway.db"):
        while store.counts().dropped < 50:
            record = make_record(len(ids))
            ids.add(record.id)
            put(store, record)
            await asyncio.sleep(0.001)
        assert store.full
        counts = store.counts()
        assert counts.spooled > 0
        assert sum(path.stat().st_size for path in directory.glob("*.spool")) <= 0.1 * 2**20
        with pytest.raises(StoreError, match="is behind"):
            await store.request("req_99999999", any_key=True)
    await until(lambda: store.counts().pending == 0)
    assert not store.full
    counts = store.counts()
    assert counts.recorded + counts.dropped == counts.finished == len(ids)
    await store.close()
    (run,) = await everything_is_there(url, ids, but=counts.dropped)
    assert (run["clean"], run["dropped"], run["lost_finished"]) == (True, counts.dropped, 0)


async def test_requests_without_a_key_push_out_no_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of requests without a key, while the database is away and there is little room."""
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url, spool_mb=0.5)
    monkeypatch.setattr(writer, "MAX_PENDING_RECORDS", 200)
    ids: set[str] = set()
    async with locked(tmp_path / "headway.db"):
        for number in range(100):
            for extra in range(200):
                record = make_record(
                    1_000_000 + 200 * number + extra, outcome=Outcome.REJECTED_AUTH, key_name=None
                )
                put(store, record)
            put(store, record := make_record(number))
            ids.add(record.id)
            await asyncio.sleep(0.001)
        assert not store.full
    await until(lambda: store.counts().pending == 0)
    counts = store.counts()
    assert counts.dropped == 0
    await store.close()
    engine = create_engine(parse_url(url))
    rows = {row[0] for row in await rows_of(engine)}
    await engine.dispose()
    assert ids <= rows
    assert counts.recorded == len(rows)
    assert 1 <= len(rows - ids) <= writer.UNAUTHENTICATED_AT_ONCE + 10
    async with opened(url) as engine:
        (run,) = await runs_of(Store(engine))
    assert (run["clean"], run["lost_finished"], run["lost_in_flight"]) == (True, 0, 0)


async def test_a_full_disk_keeps_records_in_memory_until_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with locked(tmp_path / "headway.db"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            for number in range(100):
                put(store, make_record(number))
            await until(lambda: store.full)
            assert (store.counts().pending, store.counts().spooled) == (100, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await until(lambda: store.counts().spooled == 100)
        assert not store.full
    await until(lambda: store.counts().pending == 0)
    await store.close()
    await everything_is_there(url, {f"req_{number:08d}" for number in range(100)})


# --- killed -------------------------------------------------------------------------------------------
VICTIM = """
import asyncio, sys, time
from pathlib import Path
from typing import Any
from router.core.types import Outcome
from router.store.queries import Store
from router.store.records import RequestRecord

async def main():
    store = await Store.open(sys.argv[1])
    number = 0
    while True:
        for _ in range(5):
            number += 1
            store.writer.arrived()
            now = time.time()
            record = RequestRecord(f"req_{number:09d}", now, Outcome.OK, key_name="a", policy="p", cost_usd=0.001)
            store.writer.put(record)
        store.writer.arrived()  # one that never finishes
        counts = store.counts()
        print(number, now, counts.recorded, counts.spooled, store.writer._process.pid, flush=True)
        await asyncio.sleep(0.005)

asyncio.run(main())
"""
#: The contract says 200 ms; the rest is for a machine on which the victim itself does not get its turn.
SAFE_AFTER_S = 0.5


@pytest.mark.parametrize("case", ["while it commits", "while it spools", "with its writer"])
async def test_a_process_that_is_killed_leaves_every_row(
    postgres: PostgresServer, store_url: str, tmp_path: Path, case: str
) -> None:
    """Killed while it can reach the database, or while that is away: alone or together with its writer process. What
    is lost all the same is counted exactly."""
    sqlite = store_url.startswith("sqlite")
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, store_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    seen: list[tuple[int, float]] = []
    pids: set[int] = set()

    def watch(enough: Callable[[int, int], bool]) -> None:
        for line in victim.stdout:
            number, at, recorded, spooled, pid = line.split()
            pids.add(int(pid))
            seen.append((int(number), float(at)))
            if enough(int(recorded), int(spooled)):
                return
        pytest.fail("the victim ended by itself")

    def kill() -> None:
        victim.send_signal(signal.SIGKILL)
        if case == "with its writer":
            (pid,) = pids
            os.kill(pid, signal.SIGKILL)
        for line in victim.stdout.read().splitlines()[:-1]:  # the last may be torn
            number, at, *_ = line.split()
            seen.append((int(number), float(at)))
        victim.wait(60)
        victim.stdout.close()

    try:
        await asyncio.to_thread(watch, lambda recorded, _: recorded > 200)
        if case == "while it commits":
            began_at = seen[0][1]
            await asyncio.to_thread(watch, lambda *_: seen[-1][1] > began_at + 2 * SAFE_AFTER_S)
            kill()
        elif sqlite:
            async with locked(tmp_path / "headway.db"):
                await asyncio.to_thread(watch, lambda _, spooled: spooled > 500)
                kill()
        else:
            async with postgres.away():
                await asyncio.to_thread(watch, lambda _, spooled: spooled > 500)
                kill()
    finally:
        victim.kill()

    store = await Store.open(store_url)
    engine = create_engine(parse_url(store_url))
    rows = await rows_of(engine)
    killed, running = await runs_of(store)
    last_at = seen[-1][1]
    safe = max(number for number, at in seen if at < last_at - SAFE_AFTER_S)
    found = Counter(row[0] for row in rows)
    assert [n for n in range(1, safe + 1) if found[f"req_{n:09d}"] != 1] == []
    assert killed["finished"] == len(rows) + killed["lost_finished"]
    assert killed["recorded"] == len(rows)
    assert killed["finished"] >= seen[-1][0]
    assert killed["lost_in_flight"] == killed["arrived"] - killed["finished"] > 0
    assert (killed["clean"], running["clean"]) == (False, None)
    lost = store.counts().lost
    assert lost == Lost(killed["lost_finished"], killed["lost_in_flight"])
    (sums,) = (await spend_report(store, ["key"])).rows
    assert (sums["key"], sums["requests"]) == ("a", len(rows))
    assert sums["cost_usd"] == pytest.approx(0.001 * len(rows))
    assert set((await store.spent(by_run=True))["a", "total"]) == {killed["id"]}
    await engine.dispose()
    await store.close()
    again = await Store.open(store_url)
    assert again.counts().lost == lost  # counted once
    await again.close()
    assert list(tmp_path.glob("*-run-*")) == []


async def test_rows_that_were_committed_before_the_kill_count_once(store_url: str, tmp_path: Path) -> None:
    """A spool whose lines are partly in the database, with a torn end: what a kill in mid-drain leaves."""
    store = await Store.open(store_url)
    counter = store.writer.counts.path
    await written(store, (make_record(number, cost_usd=1.0) for number in range(30)))
    counts = store.writer.counts
    counts.slots[1] += 20  # 20 more came and ended, and did not get further than the spool
    counts.slots[2] += 20
    run_id = store.run_id
    # As a kill would: nothing is closed in order.
    for task in (store.writer._ticker, store.writer._committer):
        task.cancel()
    await store.writer._process.aclose(10)
    await store._tasks.stop()
    left = store.writer._spool
    lines = [record_line(make_record(number, cost_usd=1.0), keep_prompts=False) for number in range(10, 49)]
    assert left.append([line for line in lines if line is not None])
    with spool.segments(counter)[0].open("ab") as file:
        file.write(b"0000")
    counts.close(remove=False)
    await store._engine.dispose()

    again = await Store.open(store_url)
    assert again.counts().lost == Lost(finished=1)  # the torn one
    sums = (await spend_report(again, [])).total
    assert (sums["requests"], sums["cost_usd"]) == (49, 49.0)
    first, _ = await runs_of(again)
    assert (first["id"], first["recorded"], first["lost_finished"]) == (run_id, 49, 1)
    assert (await again.spent(by_run=True))["team-a", "total"] == {run_id: 49.0}
    await again.close()


async def test_a_segment_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    await (await Store.open(url)).close()
    for run, number in (("0a", 1), ("0b", 2)):  # two killed runs
        counts = Counts(run, tmp_path / f"headway.db-run-{run}")
        line = record_line(make_record(number), keep_prompts=False)
        (tmp_path / f"headway.db-run-{run}.000001.spool").write_bytes(line)
        counts.close(remove=False)
    unreadable = tmp_path / "headway.db-run-0a.000000.spool"
    unreadable.mkdir()
    store = await Store.open(url)
    assert {row["id"] for row in (await store.requests()).requests} == {"req_00000001", "req_00000002"}
    await store.close()
    assert f"{unreadable}: Is a directory; it is left for the next start" in caplog.text
    assert sorted(tmp_path.glob("*-run-*")) == [tmp_path / "headway.db-run-0a", unreadable]


async def test_a_takeover_takes_one_lock_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS, the BSDs and network file systems, a lock of flock's excludes POSIX's, also of the same process."""

    def excluded(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr("fcntl.lockf", excluded)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    await (await Store.open(url)).close()
    Counts("0a", tmp_path / "headway.db-run-0a").close(remove=False)
    line = record_line(make_record(1), keep_prompts=False)
    (tmp_path / "headway.db-run-0a.000000.spool").write_bytes(line)
    (tmp_path / "headway.db-run-0a.writer").touch()
    store = await Store.open(url)
    async with asyncio.timeout(30):
        assert [row["id"] for row in (await store.requests()).requests] == ["req_00000001"]
    await store.close()
    assert list(tmp_path.glob("*-run-*")) == []


# --- several ------------------------------------------------------------------------------------------
async def test_only_one_replica_prunes(postgres_url: str) -> None:
    store = await Store.open(postgres_url)
    await written(store, (make_record(number, received_at=1000.0) for number in range(20)))
    url = parse_url(postgres_url)
    engine = create_engine(url)
    retention = Retention(engine, retain_days=1, max_mb=None)
    other = create_engine(url)
    async with other.connect() as connection:
        await connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
        assert await retention.prune_alone(1e6) == 0
    await other.dispose()
    assert await retention.prune_alone(1e6) == 20
    (sums,) = (await spend_report(store, ["key"])).rows
    assert sums["requests"] == 20  # what was spent is still known
    await store.close()
    assert await retention.prune_alone(4e9) == 0
    async with engine.connect() as connection:
        assert (await connection.execute(select(tables.runs))).all() == []
    await engine.dispose()
