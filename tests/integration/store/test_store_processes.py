"""Ends of the processes: of the serving one, of its writer process, of both. Every row comes once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from router.store.database import StoreError, create_engine, parse_url
from router.store.queries import Store
from router.store.runs import Lost
from router.store.spend_report import spend_report
from router.store.sqlite_file import SqliteFile
from router.store.writer import record_line
from router.store.writer_process import writer_settings
from tests.integration.store.test_store_outage import everything_is_there, locked
from tests.processes import is_running
from tests.records import make_record, put, runs_of
from tests.waiting import until


def writer_pid(store: Store) -> int:
    return store.writer._process.pid


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="this system has no such policy")
async def test_the_writer_process_does_not_interrupt_the_serving_one(store_url: str) -> None:
    store = await Store.open(store_url)
    assert os.sched_getscheduler(writer_pid(store)) == os.SCHED_BATCH
    await store.close()


async def test_a_writer_process_that_is_killed_loses_nothing(
    store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed again and again under load: also between a commit and its answer."""
    store = await Store.open(store_url)
    ids: set[str] = set()
    for kills in range(3):
        before = store.counts().recorded
        for _ in range(40):
            for _ in range(20):
                record = make_record(len(ids), cost_usd=0.001 * len(ids))
                ids.add(record.id)
                put(store, record)
            await asyncio.sleep(0.005)
        await until(lambda before=before: store.counts().recorded > before)
        pid = writer_pid(store)
        put(store, record := make_record(len(ids)))
        ids.add(record.id)
        os.kill(pid, signal.SIGKILL)
        await until(lambda kills=kills: store.counts().writer_restarts == kills + 1)
    await until(lambda: store.counts().pending == 0)
    assert not store.away
    assert (store.counts().dropped, store.counts().recorded) == (0, len(ids))
    assert "the writer process has ended (exit code -9)" in caplog.text
    await store.close()
    assert list(tmp_path.glob("*-run-*")) == []
    runs = await everything_is_there(store_url, ids)
    assert [(run["clean"], run["recorded"]) for run in runs] == [(True, len(ids))]


async def test_a_writer_process_that_is_killed_while_the_database_is_away_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    ids = set()
    async with locked(tmp_path / "headway.db"):
        for number in range(200):
            put(store, record := make_record(number))
            ids.add(record.id)
            if number % 50 == 0:
                await until(lambda: store.writer._process._writer is not None)
                os.kill(writer_pid(store), signal.SIGKILL)
            await asyncio.sleep(0.005)
        await until(lambda: store.counts().spooled == 200)
        assert store.away
    await until(lambda: store.counts().pending == 0)
    assert store.counts().writer_restarts > 0
    await store.close()
    await everything_is_there(url, ids)


async def test_a_writer_process_that_does_not_start_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for executable, told in (
        (tmp_path / "no-python", "No such file or directory"),
        (Path("/bin/false"), "exit code 1"),
    ):
        monkeypatch.setattr(sys, "executable", str(executable))
        with pytest.raises(StoreError, match=f"process that writes records does not start: {told}"):
            await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    assert list(tmp_path.glob("*-run-*")) == []


async def test_a_writer_process_that_cannot_be_started_again_leaves_rows_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'headway.db'}"
    store = await Store.open(url)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "no-python"))
        os.kill(writer_pid(store), signal.SIGKILL)
        await until(lambda: store.away)
        put(store, make_record(1))
        await until(lambda: store.counts().spooled == 1)
        with pytest.raises(StoreError, match="is behind"):
            await store.request("req_99999999", any_key=True)
        assert await store.request("req_00000001", "team-a") is not None
        async with asyncio.timeout(10):
            await store.close()
    again = await Store.open(url)
    assert again.counts().lost == Lost()
    assert await again.request("req_00000001", "team-a") is not None
    await again.close()


async def test_the_writer_process_ends_with_its_store_and_by_no_signal(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    put(store, make_record(1))
    assert await store.flush()
    pid = writer_pid(store)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    put(store, make_record(2))
    assert await store.flush()
    assert (writer_pid(store), store.counts().writer_restarts) == (pid, 0)
    await store.close()
    assert not is_running(pid)


VICTIM = """
import asyncio, sys, time
from pathlib import Path
from router.core.types import Outcome
from router.store import writer
from router.store.queries import Store
from router.store.records import RequestRecord

async def main():
    writer.SPOOL_AFTER_S = 1e9  # what survives is what the writer process has
    store = await Store.open(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    for number in range(1000):
        store.writer.arrived()
        store.writer.put(RequestRecord(f"req_{number:09d}", time.time(), Outcome.OK, cost_usd=0.001))
    while not store.writer._committing or store.writer._process._writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.001)
    store.writer.put(RequestRecord("req_too_late", time.time(), Outcome.OK))
    await asyncio.sleep(0)
    print(store.writer._process.pid, flush=True)
    time.sleep(60)

asyncio.run(main())
"""


async def test_the_writer_process_of_a_killed_process_writes_what_it_has_and_ends(tmp_path: Path) -> None:
    """The next process waits for its end, so that it counts what was lost exactly."""
    path = tmp_path / "headway.db"
    url = f"sqlite:///{path}"
    await (await Store.open(url)).close()
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with victim.stdin, victim.stdout:
        try:
            assert await asyncio.to_thread(victim.stdout.readline) == "open\n"
            async with locked(path):
                victim.stdin.write("\n")
                victim.stdin.flush()
                pid = int(await asyncio.to_thread(victim.stdout.readline))
                victim.kill()
                victim.wait(60)
                assert is_running(pid)
                opening = asyncio.create_task(Store.open(url))
                await asyncio.sleep(0.1)
        finally:
            victim.kill()
    store = await opening
    assert not is_running(pid)
    assert store.counts().lost == Lost(finished=1)  # it was never sent
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM requests").fetchone() == (1000,)
    _, killed, _ = await runs_of(store)
    assert (killed["finished"], killed["recorded"], killed["lost_finished"]) == (1001, 1000, 1)
    sums = (await spend_report(store, [])).total
    assert sums["requests"] == 1000
    await store.close()


async def test_a_database_in_memory_is_a_file_until_the_end() -> None:
    store = await Store.open("sqlite://")
    put(store, make_record(1))
    assert await store.flush()
    assert await store.request("req_00000001", "team-a") is not None
    path = Path(str(store._engine.url.database))
    assert path.exists()
    await store.close()
    assert not path.parent.exists()


@pytest.mark.parametrize("reads", [False, True])
async def test_a_writer_process_whose_answer_nobody_reads_ends_without_an_error(
    tmp_path: Path, reads: bool
) -> None:
    """The socket of a process that is killed with an unread answer is reset, not closed. Or it is killed before it has read
    that its writer process is ready."""
    url = parse_url(f"sqlite:///{tmp_path / 'headway.db'}")
    await (await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")).close()
    engine = create_engine(url)
    settings = writer_settings(engine, SqliteFile(tmp_path / "headway.db", engine), tmp_path / "run")
    await engine.dispose()
    line = record_line(make_record(1), keep_prompts=False)
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    process = subprocess.Popen(
        [sys.executable, "-m", "router.store.writer_main", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
    )
    theirs.close()
    ours.sendall(orjson.dumps(settings) + b"\n")
    if reads:
        assert ours.recv(1) == b"\n"
        ours.sendall(orjson.dumps(("run", 1, 1, 0, 1)) + b"\n" + line)
        assert ours.recv(1, socket.MSG_PEEK)
    ours.close()
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0
