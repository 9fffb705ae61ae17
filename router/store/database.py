"""Opens the database: drivers, settings, tables, and errors in one line without credentials."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import event, exc
from sqlalchemy.engine import URL, make_url

from router.store import schema
from router.store.async_engine import AsyncConnection, AsyncEngine, create_async_engine
from router.store.faults import (
    BAD_VALUE_STATES,
    error_name,
    file_fault,
    mixed_sessions,
    tls_file_fault,
)

log = logging.getLogger(__name__)
# A pool logs a traceback for each connection that a lost server leaves; the store itself says what that means.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)

#: How long one statement waits for another writer of the same SQLite file.
BUSY_TIMEOUT_MS = 2000
CONNECT_TIMEOUT_S = 10
#: How long an answer may take: a server or network may vanish without an error, and a table may be large.
COMMAND_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 1.0
# Several processes that open a new file at once take turns.
_LOCKED_WAIT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.6
_READ_ONLY_STATE = "25006"  # of PostgreSQL

_SHORT_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_DRIVERS = ("sqlite+aiosqlite", "postgresql+asyncpg")
#: The options that a URL may have. SQLAlchemy leaves out those of SQLite that it does not know.
_OPTIONS = {
    "sqlite": (),
    "postgresql": (
        "host",
        "passfile",
        "port",
        "prepared_statement_cache_size",
        "ssl",
        "target_session_attrs",
        "user",
    ),
}

#: Variables with which the driver reads files for TLS.
_TLS_FILES = ("PGSSLROOTCERT", "PGSSLCRL", "PGSSLCERT", "PGSSLKEY")


class StoreError(Exception):
    """The store cannot be opened or does not answer. The message names its URL without credentials."""


def parse_url(url: str) -> URL:
    """The URL with its async driver. Raises StoreError for a URL that Headway cannot use."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise StoreError("store.url is not a database URL (sqlite+aiosqlite:///FILE)") from None
    parsed = parsed.set(drivername=_SHORT_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _DRIVERS:
        raise StoreError(f"store.url: unknown database {parsed.drivername!r} (known: {', '.join(_DRIVERS)})")
    if parsed.port is not None and parsed.port > 65535:
        raise StoreError(f"store.url: the port {parsed.port} is above 65535")
    if "@" in (parsed.host or ""):  # it is a part of the password
        raise StoreError(
            "store.url: write @ in a user or password as %40, or name a variable in password_env"
        )
    backend = parsed.get_backend_name()
    if backend == "postgresql" and "sslmode" in parsed.query:  # libpq's name
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict(
            {"ssl": parsed.query["sslmode"]}
        )
    for option in sorted(set(parsed.query) - set(_OPTIONS[backend])):
        known = f"known: {', '.join(_OPTIONS[backend]) or 'none for SQLite'}"
        if backend == "postgresql" and (variable := f"PG{option.upper()}") in _TLS_FILES:
            known = f"set the variable {variable} instead"
        raise StoreError(f"the URL of the store has the unknown option {option!r} ({known})")
    return parsed


def public_url(url: URL) -> str:
    """The URL without user, password and options but the hosts."""
    hosts = url.normalized_query.get("host")
    host, port = (url.host, url.port) if hosts is None else (None, None)
    text = URL.create(url.drivername, host=host, port=port, database=url.database).render_as_string()
    return text if hosts is None else text.replace("://", f"://{','.join(hosts)}", 1)


def location(url: URL) -> str:
    """The place of the database, for the person who starts a program: a SQLite file's absolute path, else the public URL."""
    path = sqlite_path(url)
    return public_url(url) if path is None else str(path.absolute())


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for another database or one in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database)


def create_engine(
    url: URL, command_timeout_s: float | None = COMMAND_TIMEOUT_S, *, keeps_file: bool = False
) -> AsyncEngine:
    """An engine for a parsed URL, not yet connected. `command_timeout_s`: PostgreSQL's time for an answer (None: no
    limit). `keeps_file`: connecting does not change a SQLite file, which may be empty or another program's. Raises
    StoreError for a wrong option, or if the driver is missing."""
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        # A pooled connection may be dead after the server restarted; a ping costs one round trip a batch.
        options = {
            "pool_pre_ping": True,
            "connect_args": {
                "timeout": CONNECT_TIMEOUT_S,
                "command_timeout": command_timeout_s,
                "async_creator_fn": _connect_postgres,
            },
        }
    try:
        engine = create_async_engine(url, **options)
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(f"the URL of the store has a wrong option: {reason(error)}") from None
    except ModuleNotFoundError as error:  # of PostgreSQL: SQLite's is always installed
        raise StoreError(
            f"{public_url(url)} needs the package {error.name} (pip install '.[postgres]' in Headway's checkout)"
        ) from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine.sync_engine, "connect", _wait_for_locks if keeps_file else _set_pragmas)
    else:
        event.listen(engine.sync_engine, "handle_error", _leave_read_only)
    return engine


def _leave_read_only(context: Any) -> None:
    """A session that began while the server was read-only stays so: after the error the pool makes new ones."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY_STATE:
        context.is_disconnect = True


async def _connect_postgres(**settings: Any) -> Any:
    from asyncpg import ClientConfigurationError  # type: ignore[import-untyped]  # the driver may be missing

    from router.store.postgres_commits import connect

    try:
        connection = await connect(**settings)
    except (FileNotFoundError, IsADirectoryError, PermissionError, ssl.SSLError):  # without the file's name
        fault = _unusable_tls_file()
        if fault is None:
            raise
        raise ClientConfigurationError(fault) from None
    try:
        # To compile the overview's statement would take the server many times as long as to run it.
        await connection.execute("SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit'")
    except BaseException:
        connection.terminate()
        raise
    return connection


def _unusable_tls_file() -> str | None:
    """What is wrong with the first file of a variable of TLS that cannot be used; None if all can."""
    for variable in _TLS_FILES:
        file = os.environ.get(variable)
        if file and (fault := tls_file_fault(file, has_key=variable == "PGSSLKEY")):
            return f"{variable} {fault}"
    return None


@contextlib.asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection to read. Raises StoreError if the server has not answered within `CONNECT_TIMEOUT_S`, or does not answer
    later; so does SQLite if all that is read takes longer than `COMMAND_TIMEOUT_S`."""
    with answering(engine):
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await stack.enter_async_context(engine.connect())
            if engine.dialect.name == "sqlite":  # its driver has no limit of its own
                driver = (await connection.get_raw_connection()).driver_connection
                loop = asyncio.get_running_loop()
                stack.callback(loop.call_later(COMMAND_TIMEOUT_S, _interrupt, driver).cancel)
            yield connection


def _interrupt(driver: Any) -> None:
    with contextlib.suppress(StopIteration):
        driver.interrupt().send(None)  # it never waits


async def dispose(engine: AsyncEngine) -> None:
    """Close an engine's idle connections. One to a server that does not answer is given up after a second."""
    while True:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                return await engine.dispose()
        except TimeoutError:
            continue  # asyncpg has aborted that connection; the others are still to be closed


def sqlite_pragmas() -> list[str]:
    """The settings of each connection to a file with tables. WAL: readers and the writer do not wait for each other.
    synchronous=NORMAL: a commit is in the page cache (a killed process loses nothing); checkpoints write it to disk."""
    return [
        f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "PRAGMA journal_size_limit=67108864",
    ]


def _wait_for_locks(connection: Any, _record: object) -> None:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")


def _set_pragmas(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA page_count")
        if cursor.fetchone() == (0,):  # on a file with tables it has no effect, but waits for who writes
            cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in sqlite_pragmas():
            cursor.execute(pragma)
    except BaseException:
        # The pool does not know the connection yet, and its thread would outlive the event loop.
        connection.close()
        raise
    cursor.close()


def driver_errors(engine: AsyncEngine) -> tuple[type[Exception], ...]:
    """The errors of using a database: SQLAlchemy's, the network's, and the driver's own where SQLAlchemy does not
    translate them: while connecting, and for a text that is not valid Unicode (of a damaged file also in a message)."""
    errors: tuple[type[Exception], ...] = (
        exc.SQLAlchemyError,
        OSError,
        TimeoutError,
        sqlite3.Error,
        UnicodeError,
    )
    if engine.dialect.name == "postgresql":
        import asyncpg

        errors = (*errors, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return errors


def is_bad_value(error: Exception) -> bool:
    """Whether an error is about a value that no row can have (unlike a slow, locked or unreachable database)."""
    state = str(getattr(_cause(error), "sqlstate", None))
    return isinstance(error, (exc.DataError, ValueError)) or state[:2] in BAD_VALUE_STATES


async def connect(engine: AsyncEngine, *, create: bool, wait_s: float = 0.0) -> None:
    """Check that the database answers and has our tables; if `create`, bring them to the newest version.

    Waits up to `wait_s` seconds for a server to answer. Raises StoreError: unreachable, not writable, not a database,
    tables of another shape, or of a version that this program does not know.
    """
    where = location(engine.url)
    path = sqlite_path(engine.url)
    if path is not None:
        if not create and not path.exists():
            raise StoreError(f"no database at {where}")
        if create:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it holds keys' hashes
            except OSError as error:
                raise StoreError(f"cannot open the store {where}: {error.strerror}") from None
        with opening(engine):
            _probe(path)
    await retrying(engine, _upgrade if create else schema.check, wait_s)


async def retrying(
    engine: AsyncEngine, work: Callable[[AsyncEngine], Awaitable[None]], wait_s: float = 0.0
) -> None:
    """Do what a start needs. It is repeated for up to `wait_s` seconds (for a file at least 30) while a server does not
    answer or is read-only, or another process has the file locked. Raises StoreError."""
    path = sqlite_path(engine.url)
    if path is not None:
        wait_s = max(wait_s, _LOCKED_WAIT_S)
    give_up_at = time.monotonic() + wait_s
    pause_s = _FIRST_PAUSE_S
    while True:
        with opening(engine):
            try:
                return await work(engine)
            except driver_errors(engine) as error:
                if time.monotonic() >= give_up_at or not (is_temporary(error) or _is_read_only(error)):
                    raise
                if path is None and pause_s == _FIRST_PAUSE_S:
                    log.warning(
                        "the store %s does not answer yet (%s): waiting up to %g s",
                        location(engine.url),
                        reason(error),
                        wait_s,
                    )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextlib.asynccontextmanager
async def opened(url: str, *, create: bool = False) -> AsyncIterator[AsyncEngine]:
    """An engine for a command, whose database has passed `connect`. Raises StoreError if it cannot be opened or stops
    answering."""
    engine = create_engine(parse_url(url), keeps_file=not create)
    try:
        await connect(engine, create=create)
        with answering(engine, reason):
            yield engine
    finally:
        await dispose(engine)


async def _upgrade(engine: AsyncEngine) -> None:
    if engine.dialect.name == "sqlite":
        await schema.upgrade(engine)
        return
    # Filling a new table from millions of rows takes a while, and so does waiting for a process that does it.
    patient = create_engine(engine.url, command_timeout_s=None)
    try:
        await schema.upgrade(patient)
    finally:
        await dispose(patient)


def _probe(path: Path) -> None:
    """Open a SQLite file and read its header without the asynchronous driver. That driver leaves a thread behind when it
    fails to connect, which may answer after the event loop has closed."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()


def _is_read_only(error: Exception) -> bool:
    """Whether PostgreSQL takes no writes: for good, or while it is not yet the primary."""
    return getattr(_cause(error), "sqlstate", None) == _READ_ONLY_STATE


def is_temporary(error: Exception) -> bool:
    """Whether a database that cannot be opened may open soon: a server that is starting or is not yet the primary, a file
    or table that another process has locked."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, (OSError, TimeoutError)):
        return True
    cause = _cause(error)
    if mixed_sessions(cause) is not None:
        return False
    state = str(getattr(cause, "sqlstate", None) or "")
    # Connections; too many of them; a lock that was not granted in time; shutting down or starting up.
    if state[:2] in {"08", "53", "55", "57"}:
        return True
    return "locked" in str(cause) or isinstance(cause, OSError) or error_name(cause) == _NO_PRIMARY


_NO_ANSWER = "no answer in time"
#: What asyncpg raises if no host is what `target_session_attrs` says.
_NO_PRIMARY = "TargetServerAttributeNotMatched"


def _cause(error: BaseException) -> BaseException:
    """The driver's own error."""
    return error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error


def _is_timeout(cause: BaseException) -> bool:
    return isinstance(cause, TimeoutError) or getattr(cause, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def safe_reason(error: Exception) -> str:
    """What may be logged or shown of an error."""
    cause = _cause(error)
    if _is_timeout(cause):
        return _NO_ANSWER
    return file_fault(cause) or error_name(cause)


def reason(error: Exception) -> str:
    """The driver's own words, one line, without the SQL and the parameters that SQLAlchemy adds."""
    cause = _cause(error)
    if _is_timeout(cause):
        return _NO_ANSWER
    text = str(cause).removeprefix(f"{type(cause)}: ").strip() or type(cause).__name__
    return mixed_sessions(cause) or text.splitlines()[0]


@contextlib.contextmanager
def opening(engine: AsyncEngine) -> Iterator[None]:
    """Turns what a database raises that cannot be opened or used into StoreError."""
    try:
        yield
    except schema.SchemaError as error:
        raise StoreError(f"the store {location(engine.url)} {error}") from None
    except driver_errors(engine) as error:
        raise StoreError(f"cannot open the store {location(engine.url)}: {reason(error)}") from None


@contextlib.contextmanager
def answering(engine: AsyncEngine, words: Callable[[Exception], str] = safe_reason) -> Iterator[None]:
    """Turns what a database raises that does not answer into StoreError, with the error in these `words`."""
    try:
        yield
    except driver_errors(engine) as error:
        raise StoreError(f"the store {public_url(engine.url)} does not answer ({words(error)})") from None
