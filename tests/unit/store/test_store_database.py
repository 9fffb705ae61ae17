"""URLs, errors without credentials, and telling bad values from bad days."""

from __future__ import annotations

import re
import resource
import sqlite3
import ssl
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DataError, OperationalError

from router.store import database, tables
from router.store.database import (
    StoreError,
    connect,
    create_engine,
    is_bad_value,
    is_temporary,
    opened,
    parse_url,
    public_url,
    sqlite_path,
)
from router.store.queries import Store
from router.store.runs import create_counts, file_prefix


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///x.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///x.db", "sqlite+aiosqlite"),
        ("postgresql://h/db", "postgresql+asyncpg"),
        ("postgres://h/db", "postgresql+asyncpg"),
        ("postgresql+asyncpg://h/db", "postgresql+asyncpg"),
    ],
)
def test_short_names_get_their_async_driver(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize("url", ["mysql://root:hunter2@h/db", "hunter2", "sqlite+pysqlite:///x.db", ""])
def test_another_database_is_refused_without_showing_the_url(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        parse_url(url)
    assert "hunter2" not in str(refused.value)


def test_the_public_url_has_no_credentials() -> None:
    url = parse_url("postgresql://user:hunter2@db.example:5433/headway?user=hunter3")
    assert public_url(url) == "postgresql+asyncpg://db.example:5433/headway"


def test_the_public_url_names_each_host() -> None:
    url = parse_url("postgresql://user:hunter2@/headway?host=db-1:5432&host=db-2:5433&ssl=require")
    assert public_url(url) == "postgresql+asyncpg://db-1:5432,db-2:5433/headway"


def test_the_files_of_a_run_are_found_whatever_the_order_of_the_hosts(tmp_path: Path) -> None:
    urls = [parse_url(f"postgresql://u@/headway?host={hosts}") for hosts in ("a:1&host=b:2", "b:2&host=a:1")]
    assert file_prefix(urls[0], tmp_path) == file_prefix(urls[1], tmp_path)


def test_an_at_sign_in_a_password_shows_none_of_it() -> None:
    with pytest.raises(StoreError, match="%40") as refused:
        parse_url("postgresql://user:hun@ter2@db.example/headway")
    assert "ter2" not in str(refused.value)


def test_options_are_known_ones() -> None:
    assert parse_url("postgresql://h/db?sslmode=require").query == {"ssl": "require"}
    with pytest.raises(StoreError, match="unknown option 'application_name'"):
        parse_url("postgresql://h/db?application_name=hunter2")
    with pytest.raises(StoreError, match=r"unknown option 'timeout' \(known: none for SQLite\)"):
        parse_url("sqlite:///x.db?timeout=30")
    with pytest.raises(StoreError, match=r"wrong option: .*'one'"):
        create_engine(parse_url("postgresql://h/db?port=one"))
    with pytest.raises(StoreError, match="the port 99999 is above 65535"):
        parse_url("postgresql://h:99999/db")
    with pytest.raises(StoreError, match=r"wrong option: Invalid SQLite URL: [^\n]*$"):
        create_engine(parse_url("sqlite:///x.db").set(password="hunter2"))
    with pytest.raises(StoreError, match=r"'sslrootcert' \(set the variable PGSSLROOTCERT instead\)"):
        parse_url("postgresql://h/db?sslrootcert=/ca.pem")


@pytest.mark.parametrize(
    ("variable", "text", "fault"),
    [
        ("PGSSLROOTCERT", None, "No such file or directory"),
        ("PGSSLROOTCERT", "hello", "it has no certificate or CRL in PEM format"),
        ("PGSSLCERT", None, "No such file or directory"),
    ],
)
async def test_an_unusable_file_of_tls_is_named(
    variable: str, text: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.pem"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(variable, str(file))
    engine = create_engine(parse_url("postgresql://headway@127.0.0.1:1/x?ssl=require"))
    with pytest.raises(StoreError, match=f"{variable} {re.escape(str(file))}: {fault}"):
        await connect(engine, create=False, wait_s=30.0)


def test_the_file_of_a_sqlite_url() -> None:
    assert sqlite_path(parse_url("sqlite:////var/lib/h.db")) == Path("/var/lib/h.db")
    assert sqlite_path(parse_url("sqlite://")) is None
    assert sqlite_path(parse_url("postgresql://h/db")) is None


@pytest.mark.parametrize("name", ["missing/headway.db", "a_file/headway.db", ""])
async def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a_file").write_text("")
    with pytest.raises(StoreError, match="cannot open the store") as refused:
        await Store.open(f"sqlite:///{tmp_path / name}")
    assert "\n" not in str(refused.value)


def test_a_disk_without_room_for_the_counters_gets_no_file(tmp_path: Path) -> None:
    """A gateway that is started again and again would leave one each time."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot create the store's counter file"):
            create_counts(tmp_path / "run-", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    with pytest.raises(StoreError, match="not a database"):
        await Store.open(f"sqlite:///{path}")


async def test_a_file_whose_tables_are_damaged_is_one_clear_error(tmp_path: Path) -> None:
    """SQLite's message quotes the damaged text, which is not UTF-8."""
    path = tmp_path / "damaged.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE a_table (id TEXT PRIMARY KEY)")
    path.write_bytes(path.read_bytes().replace(b"a_table (id", b"a_table \xffid"))
    with pytest.raises(StoreError, match="cannot open the store") as refused:
        await opened(f"sqlite:///{path}").__aenter__()
    assert "\n" not in str(refused.value)


async def test_tables_of_another_shape_are_named(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE feedback (id INTEGER PRIMARY KEY, request_id TEXT, received_at REAL)")
    connection.close()
    with pytest.raises(StoreError, match=r"feedback\.key_name, the column feedback\.quality"):
        await Store.open(f"sqlite:///{path}")


async def test_reading_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database at"):
        await opened(f"sqlite:///{tmp_path / 'headway.db'}").__aenter__()
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_does_not_verify_is_no_passing_trouble() -> None:
    assert is_temporary(ConnectionRefusedError())
    assert not is_temporary(ssl.SSLCertVerificationError(1, "certificate verify failed"))


def test_bad_values_are_told_from_bad_days() -> None:
    assert is_bad_value(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"))
    assert is_bad_value(DataError("", None, sqlite3.DataError()))
    assert not is_bad_value(OperationalError("", None, sqlite3.OperationalError("database is locked")))
    assert not is_bad_value(ConnectionRefusedError())
    assert not is_bad_value(TimeoutError())


async def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "new.db"
    opened = await Store.open(f"sqlite+aiosqlite:///{path}")
    try:
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob("new.db*")}
    finally:
        await opened.close()
    assert modes["new.db"] == 0o600
    assert {modes[name] for name in modes if name.endswith(("-wal", "-shm"))} <= {0o600}


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(
        StoreError, match=r"^postgresql\+asyncpg://h/n needs the package asyncpg .*\.\[postgres\]"
    ):
        create_engine(parse_url("postgresql://u:secret@h/n"))


async def test_a_long_read_of_sqlite_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'a.db'}")
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30000000) SELECT max(i) FROM n"
    )
    monkeypatch.setattr(database, "COMMAND_TIMEOUT_S", 0.1)
    with pytest.raises(StoreError, match=r"does not answer \(no answer in time\)"):
        await store.rows(text(numbers))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert await store.rows(select(tables.requests)) == []
    await store.close()
