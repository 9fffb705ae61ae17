"""A database file that is moved, removed, replaced, full or read-only under a running store."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from router.store import writer_process
from router.store.database import StoreError, sqlite_pragmas
from router.store.keys import StoredKey
from router.store.queries import Store
from tests.records import make_record, put
from tests.waiting import until

WATCH = "router.store.sqlite_file"


def ids_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT id FROM requests ORDER BY id").fetchall()
    connection.close()
    return [row[0] for row in rows]


def take_away(path: Path, how: str) -> Callable[[], None]:
    """Do it; what is returned puts the file back as it was."""
    folder = path.parent
    if how == "file moved":
        aside = folder / "aside.db"
        path.rename(aside)
        return lambda: aside.rename(path) and None
    if how == "directory moved":
        folder.rename(folder.with_name("elsewhere"))
        return lambda: folder.with_name("elsewhere").rename(folder) and None
    aside = folder / "aside.db"
    path.rename(aside)
    path.write_bytes(aside.read_bytes())
    return lambda: os.replace(aside, path)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("file moved", "the database's file was moved or removed"),
        ("directory moved", "the database's directory was moved or removed"),
        ("replaced", "another file has replaced the database"),
    ],
)
async def test_a_lost_file_is_noticed_and_nothing_is_lost_when_it_is_back(
    how: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data" / "headway.db"
    path.parent.mkdir()
    store = await Store.open(f"sqlite:///{path}")
    put(store, make_record(1))
    assert await store.flush()
    assert store.fault is None

    put_back = take_away(path, how)
    await until(lambda: any(record.name == WATCH for record in caplog.records))  # without a request
    assert store.fault == told
    for number in (2, 3):
        put(store, make_record(number))
    await until(lambda: store.writer.retries > 0)
    with pytest.raises(StoreError, match=told):
        await store.keys.add(StoredKey("new", "0" * 64, None, "{}", 1.0))
    with pytest.raises(StoreError, match=told):
        await store.keys.version()
    assert store.counts().file_losses == 1
    assert store.counts().dropped == 0
    assert not (how == "file moved" and path.exists())  # no empty file is made in its place

    put_back()
    await until(lambda: store.writer.recorded == 3)
    assert store.fault is None
    await store.keys.add(StoredKey("new", "0" * 64, None, "{}", 1.0))
    await store.close()
    assert ids_in(path) == [f"req_{number:08d}" for number in (1, 2, 3)]
    assert [record.levelname for record in caplog.records if record.name == WATCH] == ["ERROR", "WARNING"]


async def test_a_restart_writes_what_waited_into_the_file_that_is_there_then(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    store = await Store.open(f"sqlite:///{path}")
    put(store, make_record(1))
    assert await store.flush()
    for each in tmp_path.glob("headway.db*"):
        if "-run-" not in each.name:
            each.unlink()
    put(store, make_record(2))
    await until(lambda: store.counts().spooled == 1)
    await store.close(timeout_s=1.0)
    assert not path.exists()

    store = await Store.open(f"sqlite:///{path}")
    await store.taken_up()
    await store.close()
    assert ids_in(path) == ["req_00000002"]


async def test_a_spool_whose_files_are_removed_too_loses_nothing_while_the_process_lives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "headway.db"
    store = await Store.open(f"sqlite:///{path}")
    path.rename(tmp_path / "aside.db")
    put(store, make_record(1))
    await until(lambda: store.counts().spooled == 1)
    for spool in tmp_path.glob("*.spool"):
        spool.unlink()
    put(store, make_record(2))
    await until(lambda: store.counts().spooled == 2)
    assert len(list(tmp_path.glob("*.spool"))) == 1  # a new one, for the second
    (tmp_path / "aside.db").rename(path)
    await until(lambda: store.counts().recorded == 2)
    assert store.counts().dropped == 0
    await store.close()
    assert ids_in(path) == ["req_00000001", "req_00000002"]


async def test_a_spool_whose_files_cannot_be_removed_stops_no_recording(tmp_path: Path) -> None:
    path, directory = tmp_path / "headway.db", tmp_path / "spool"
    store = await Store.open(f"sqlite:///{path}", spool_directory=directory)
    path.rename(tmp_path / "aside.db")
    put(store, make_record(1))
    await until(lambda: store.counts().spooled == 1)
    directory.rename(tmp_path / "old spool")
    directory.write_text("")  # to remove a file from here is an error other than that it is missing
    (tmp_path / "aside.db").rename(path)
    await until(lambda: store.counts().recorded == 1)
    put(store, make_record(2))
    await until(lambda: store.counts().recorded == 2)
    await store.close()
    assert ids_in(path) == ["req_00000001", "req_00000002"]


@contextmanager
def files_no_larger_than(size_bytes: int, pid: int) -> Iterator[None]:
    """Writes of a process beyond fail, as on a disk that is full (EFBIG instead of ENOSPC)."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_no_more_is_told_and_rows_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "headway.db"
    store = await Store.open(f"sqlite:///{path}")
    put(store, make_record(1))
    assert await store.flush()
    pid = store.writer._process.pid
    with files_no_larger_than(Path(f"{path}-wal").stat().st_size, pid):
        put(store, make_record(2))
        await until(lambda: store.fault is not None)
        assert store.fault in {"the disk is full", "the disk refuses to read or write the database file"}
        assert store.fault in caplog.text
        await until(lambda: store.counts().spooled == 1)
    await until(lambda: store.writer.recorded == 2)
    assert store.fault is None
    await store.close()
    assert len(ids_in(path)) == 2


async def test_a_file_that_may_only_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "headway.db"
    with monkeypatch.context() as patched:
        patched.setattr(writer_process, "sqlite_pragmas", lambda: [*sqlite_pragmas(), "PRAGMA query_only=1"])
        store = await Store.open(f"sqlite:///{path}")
    put(store, make_record(1))
    await until(lambda: store.fault is not None)
    assert store.fault == "the database file cannot be written: it or its file system is read-only"
    await until(lambda: store.counts().spooled == 1)
    await store.close(timeout_s=1.0)
    store = await Store.open(f"sqlite:///{path}")
    assert store.fault is None
    await store.close()
    assert ids_in(path) == ["req_00000001"]


async def test_a_backup_that_is_copied_away_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    store = await Store.open(f"sqlite:///{path}")
    shutil.copy(path, tmp_path / "backup.db")
    put(store, make_record(1))
    assert await store.flush()
    assert store.fault is None
    assert store.counts().file_losses == 0
    await store.close()
