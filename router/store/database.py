"""Opening the database: drivers, settings, tables, and errors told in one line without credentials."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, event, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from router.store.tables import metadata

#: How long one statement waits for another writer of the same SQLite file.
BUSY_TIMEOUT_MS = 2000
CONNECT_TIMEOUT_S = 10
_CREATE_ATTEMPTS = 5

_SHORT_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_DRIVERS = ("sqlite+aiosqlite", "postgresql+asyncpg")


class StoreError(Exception):
    """The store cannot be opened or does not answer. The message names its URL without credentials."""


def parse_url(url: str) -> URL:
    """The URL with its async driver filled in; StoreError if it is none that Headway can use."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("store.url is not a database URL (sqlite+aiosqlite:///FILE)") from None
    parsed = parsed.set(drivername=_SHORT_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _DRIVERS:
        raise StoreError(f"store.url: unknown database {parsed.drivername!r} (known: {', '.join(_DRIVERS)})")
    return parsed


def public_url(url: URL) -> str:
    """The URL without user, password and query (drivers take passwords there too)."""
    return URL.create(url.drivername, host=url.host, port=url.port, database=url.database).render_as_string()


def with_password(url: str, password: str) -> str:
    """The URL with a password from elsewhere put in."""
    return parse_url(url).set(password=password).render_as_string(hide_password=False)


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for another database or one in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database.removeprefix("file:"))


def create_engine(url: URL) -> AsyncEngine:
    """An engine for a parsed URL. Nothing is connected yet."""
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        # A pooled connection may have died with a restarted server; asking first is one round trip a batch.
        options = {"pool_pre_ping": True, "connect_args": {"timeout": CONNECT_TIMEOUT_S}}
    try:
        engine = create_async_engine(url, **options)
    except ModuleNotFoundError as error:
        extra = "postgres" if url.get_backend_name() == "postgresql" else "store"
        raise StoreError(
            f"{public_url(url)} needs the package {error.name} (pip install 'headway[{extra}]')"
        ) from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine.sync_engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: Any, _record: object) -> None:
    """WAL: readers and the one writer do not wait for each other. synchronous=NORMAL: a commit is in the
    page cache (a killed process loses nothing), the disk follows at checkpoints."""
    cursor = connection.cursor()
    try:
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "auto_vacuum=INCREMENTAL",  # only takes effect on a new file, before its first table
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "journal_size_limit=67108864",
        ):
            cursor.execute(f"PRAGMA {pragma}")
    except BaseException:
        # The pool does not know of it yet, and its thread would outlive the event loop.
        connection.close()
        raise
    cursor.close()


def driver_errors(url: URL) -> tuple[type[Exception], ...]:
    """What using a database can raise: SQLAlchemy's errors, the network's, and the driver's own where
    SQLAlchemy does not translate them (while connecting)."""
    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, TimeoutError, sqlite3.Error)
    if url.get_backend_name() == "postgresql":
        import asyncpg  # type: ignore[import-untyped]

        errors = (*errors, asyncpg.PostgresError, asyncpg.InterfaceError)
    return errors


#: Raised by a driver, or on the way to it, for values that the database will never take.
_VALUE_ERRORS = (ValueError, TypeError, OverflowError)


def is_bad_value(error: BaseException) -> bool:
    """Whether trying the same rows again is in vain (as opposed to a slow, locked or unreachable database)."""
    if isinstance(error, (DataError, IntegrityError)):
        return True
    if isinstance(error, DBAPIError):
        if error.connection_invalidated or isinstance(error, OperationalError):
            return False
        state: str | None = getattr(error.orig, "sqlstate", None)
        if state is not None:
            return state[:2] in {"22", "23"}
        # sqlite3 says these for a value of a type that it cannot bind
        return isinstance(error, (InterfaceError, ProgrammingError)) and "bind" in str(error.orig)
    return isinstance(error, _VALUE_ERRORS)


async def connect(url: URL, engine: AsyncEngine, *, create: bool) -> None:
    """Check that the database answers and has our tables, creating what is missing if `create`.

    StoreError: unreachable, not writable, not a database, or tables of another shape."""
    where = public_url(url)
    path = sqlite_path(url)
    if path is not None:
        if not create and not path.exists():
            raise StoreError(f"no database at {where}")
        try:
            _probe(path)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the store {where}: {reason(error)}") from None
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        try:
            async with engine.begin() as connection:
                if create:
                    await connection.run_sync(metadata.create_all)
                missing = await connection.run_sync(_missing_columns)
            break
        except driver_errors(url) as error:
            # Two processes that start together may both find a table missing.
            if attempt == _CREATE_ATTEMPTS or not _is_race(error):
                raise StoreError(f"cannot open the store {where}: {reason(error)}") from None
            await asyncio.sleep(0.05 * attempt)
    if missing:
        raise StoreError(f"the store {where} lacks {', '.join(missing)}: made by another version?")


def _probe(path: Path) -> None:
    """Open a SQLite file and read its header, without the asynchronous driver: when that fails to connect it
    leaves a thread behind which may still answer after the event loop has closed."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()


def _is_race(error: Exception) -> bool:
    text = str(error)
    return "already exists" in text or "locked" in text or "pg_type_typname_nsp_index" in text


def reason(error: Exception) -> str:
    """The driver's own words, one line, without the SQL and the parameters that SQLAlchemy adds."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(cause).removeprefix(f"{type(cause)}: ").strip() or type(cause).__name__
    return text.splitlines()[0]


def _missing_columns(connection: Connection) -> list[str]:
    inspector = inspect(connection)
    present = set(inspector.get_table_names())
    missing = []
    for table in metadata.sorted_tables:
        if table.name not in present:
            missing.append(f"the table {table.name}")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        missing += [
            f"the column {table.name}.{column.name}" for column in table.columns if column.name not in columns
        ]
    return missing


class Insert:
    """`INSERT ... ON CONFLICT DO NOTHING` of many rows at once, compiled once.

    Doing nothing on a conflict makes a batch safe to send again when a commit's answer was lost. For SQLite a
    statement takes several rows: its driver hands over Python's lock with each statement that it runs, and
    under load that handing over costs more than the insert."""

    _ROWS_A_STATEMENT = 20  # stays under 999 parameters, the limit of older SQLite versions

    def __init__(self, table: Table, backend: str) -> None:
        self.one, self.columns = _insert_sql(table, backend)
        self.several: str | None = None
        if backend == "sqlite":
            row = f"({', '.join('?' * len(self.columns))})"
            self.several = self.one.replace(row, ", ".join([row] * self._ROWS_A_STATEMENT))

    async def run(self, connection: AsyncConnection, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows, values in the order of `columns`."""
        done = 0
        if self.several is not None and len(rows) >= self._ROWS_A_STATEMENT:
            size = self._ROWS_A_STATEMENT
            done = len(rows) - len(rows) % size
            parts = [tuple(chain.from_iterable(rows[i : i + size])) for i in range(0, done, size)]
            await connection.exec_driver_sql(self.several, parts)
        if done < len(rows):
            await connection.exec_driver_sql(self.one, rows[done:])


def _insert_sql(table: Table, backend: str) -> tuple[str, tuple[str, ...]]:
    statement: Any
    dialect: Any
    if backend == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_nothing()
        dialect = postgresql.asyncpg.dialect()  # type: ignore[no-untyped-call]
    else:
        statement = sqlite.insert(table).on_conflict_do_nothing()
        dialect = sqlite.aiosqlite.dialect()
    columns = [column.name for column in table.columns]
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    return str(compiled), tuple(compiled.positiontup)
