"""What the writer process does with a batch, here in one process: each row once, and the sums that count it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import asyncpg
import pytest

from router.store.commits import Commits, Run, Written
from router.store.database import create_engine, parse_url
from router.store.entries import REQUEST_COLUMNS, Entry
from router.store.faults import LostFileError, file_fault
from router.store.postgres_commits import PostgresDatabase
from router.store.queries import Store
from router.store.sqlite_commits import SqliteDatabase
from router.store.sqlite_file import SqliteFile
from router.store.writer_main import _answer
from router.store.writer_process import writer_settings
from tests.records import entry_of, make_record

RUN = Run("run", 9, 8, 7)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A new file with our tables and one run."""
    url = parse_url(f"sqlite:///{tmp_path / 'headway.db'}")
    await (await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")).close()
    with closing(sqlite3.connect(tmp_path / "headway.db")) as connection, connection:
        connection.execute("DELETE FROM runs")
        connection.execute(
            "INSERT INTO runs (id, started_at, arrived, finished, recorded, dropped, lost_finished, lost_in_flight)"
            " VALUES ('run', 1, 1, 2, 100, 3, 0, 0)"
        )
    engine = create_engine(url)
    settings = writer_settings(engine, SqliteFile(tmp_path / "headway.db", engine), tmp_path / "run")
    settings = {name: value for name, value in settings.items() if name not in {"backend", "lock_file"}}
    opened = SqliteDatabase(**settings)
    yield opened
    if opened._connection is not None:
        opened._connection.close()
    await engine.dispose()


def entries(numbers: Sequence[int], **fields: Any) -> list[Entry]:
    return [entry_of(make_record(number, received_at=86_400.0, cost_usd=1.0, **fields)) for number in numbers]


def read(tmp_path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(tmp_path / "headway.db")) as connection:
        return connection.execute(query).fetchall()


def spent(tmp_path: Path) -> list[tuple[Any, ...]]:
    return read(tmp_path, "SELECT run_id, SUM(requests), SUM(cost_usd) FROM spend GROUP BY run_id")


RUNS = "SELECT arrived, finished, recorded, dropped FROM runs"


def test_a_batch_that_comes_again_is_written_and_counted_once(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    commits = Commits(database)
    assert commits.write(RUN, entries(range(10))) == Written(new=10)
    assert commits.write(RUN, entries(range(5, 15))) == Written(new=5)
    commits = Commits(database)  # a process that was started again
    assert commits.write(RUN, entries(range(16))) == Written(new=1)
    assert commits.write(RUN, entries([16, 16])) == Written(new=1)
    assert spent(tmp_path) == [("run", 17, 17.0)]
    assert read(tmp_path, RUNS) == [(9, 8, 117, 7)]
    assert read(tmp_path, "SELECT COUNT(*) FROM attempts") == [(17,)]


def test_the_sums_of_many_keys_grow(database: SqliteDatabase, tmp_path: Path) -> None:
    """One statement adds to several sums."""
    commits = Commits(database)
    for first in (0, 20):
        batch = [each for key in range(20) for each in entries([first + key], key_name=f"team-{key:02}")]
        assert commits.write(RUN, batch) == Written(new=20)
    sums = read(tmp_path, "SELECT key_name, requests, cost_usd FROM spend ORDER BY key_name")
    assert sums == [(f"team-{key:02}", 2, 2.0) for key in range(20)]


def test_rows_of_a_killed_run_leave_its_counters_as_they_are(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    commits = Commits(database)
    assert commits.write(Run("another"), entries([1])) == Written(new=1)
    assert commits.write(Run("run"), entries([1, 2])) == Written(new=1)
    assert read(tmp_path, RUNS) == [(1, 2, 101, 3)]
    assert spent(tmp_path) == [("another", 1, 1.0), ("run", 1, 1.0)]


def test_an_answer_that_was_lost_counts_nothing_twice(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was done, but the writer does not know."""
    commits, commit = Commits(database), database.commit

    def cut_off() -> None:
        commit()
        raise sqlite3.OperationalError("the connection was cut off")

    commits.write(RUN, entries([1]))
    with monkeypatch.context() as patched:
        patched.setattr(database, "commit", cut_off)
        with pytest.raises(sqlite3.OperationalError):
            commits.write(RUN, entries([2, 3]))
    assert commits.write(RUN, entries([2, 3, 4])) == Written(new=1)
    assert spent(tmp_path) == [("run", 4, 4.0)]
    assert read(tmp_path, RUNS) == [(9, 8, 104, 7)]


def test_a_bad_row_is_corrected_or_refused_and_takes_no_other_with_it(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    batch = entries(range(20))
    (good,) = entries([20])
    batch[7] = good._replace(request=(good.id, ["not bound"], *good.request[2:]))  # becomes NULL
    # Outcome may not be NULL.
    batch[9] = batch[9]._replace(request=(batch[9].id, *[None] * (len(good.request) - 1)))
    assert Commits(database).write(RUN, batch) == Written(new=19, refused=1)
    ids = [row[0] for row in read(tmp_path, "SELECT id FROM requests ORDER BY id")]
    assert ids == [f"req_{number:08d}" for number in range(21) if number not in {7, 9}]
    assert spent(tmp_path) == [("run", 19, 19.0)]


def test_an_error_of_an_unknown_kind_refuses_its_row_alone(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    execute = database.execute

    def failing(sql: str, rows: Sequence[Any]) -> None:
        if any(row[0] == "req_00000005" for row in rows):
            raise LookupError("of a driver")
        execute(sql, rows)

    monkeypatch.setattr(database, "execute", failing)
    assert Commits(database).write(RUN, entries(range(12))) == Written(new=11, refused=1)
    assert len(read(tmp_path, "SELECT id FROM requests")) == 11
    assert spent(tmp_path) == [("run", 11, 11.0)]


def test_rows_for_which_there_is_no_memory_wait(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """sqlite3 raises MemoryError itself."""

    def no_memory(sql: str, rows: Sequence[Any]) -> None:
        raise MemoryError

    commits = Commits(database)
    with monkeypatch.context() as patched:
        patched.setattr(database, "execute", no_memory)
        with pytest.raises(commits.errors):
            commits.write(RUN, entries(range(4)))
    assert commits.write(RUN, entries(range(4))) == Written(new=4)
    assert spent(tmp_path) == [("run", 4, 4.0)]


@pytest.mark.parametrize("received_at", [4e18, 253_402_300_800.0, -1e15])
def test_a_time_that_has_no_day_takes_no_other_row_with_it(
    database: SqliteDatabase, tmp_path: Path, received_at: float
) -> None:
    good, bad = entries([1, 2])
    row = list(bad.request)
    row[REQUEST_COLUMNS.index("received_at")] = received_at
    assert Commits(database).write(RUN, [bad._replace(request=tuple(row)), good]) == Written(1, 1)
    assert read(tmp_path, "SELECT id FROM requests") == [(good.id,)]


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.exceptions.TargetServerAttributeNotMatched("no primary"),
        asyncpg.exceptions.ClientConfigurationError("no root.crt"),
        AttributeError("server_version"),  # of a server that is no PostgreSQL
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_server_that_cannot_be_connected_to_refuses_no_row(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(asyncpg, "connect", AsyncMock(side_effect=error))
    answer = _answer(Commits(PostgresDatabase({})), RUN, [b"a line"])
    assert answer == {"error": type(error).__name__, "fault": None, "away": True}


def test_a_file_that_is_not_ours_is_not_written(database: SqliteDatabase, tmp_path: Path) -> None:
    commits, path = Commits(database), tmp_path / "headway.db"
    commits.write(RUN, entries([1]))
    path.rename(tmp_path / "aside.db")
    with pytest.raises(LostFileError) as lost:
        commits.write(RUN, entries([2]))
    assert file_fault(lost.value) == "the database's file was moved or removed"
    assert not path.exists()
    (tmp_path / "aside.db").rename(path)
    assert commits.write(RUN, entries([2])) == Written(new=1)


def test_a_file_that_may_only_be_read_is_a_fault_and_a_locked_one_is_not(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    commits = Commits(database)
    commits.write(RUN, entries([1]))
    database._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError) as refused:
        commits.write(RUN, entries([2]))
    assert (
        file_fault(refused.value) == "the database file cannot be written: it or its file system is read-only"
    )
    database._connection.execute("PRAGMA query_only = 0")
    database._connection.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(tmp_path / "headway.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as locked:
            commits.write(RUN, entries([2]))
        assert file_fault(locked.value) is None
        other.execute("ROLLBACK")
    assert commits.write(RUN, entries([2])) == Written(new=1)
