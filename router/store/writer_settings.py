"""What a writer process receives when it starts: how to connect. It does not load SQLAlchemy, which reads the URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.store.async_engine import AsyncEngine
from router.store.database import CONNECT_TIMEOUT_S, sqlite_pragmas
from router.store.runs import writer_file
from router.store.sqlite_file import SqliteFile

#: PostgreSQL's time for a statement; after it the connection is closed.
COMMIT_TIMEOUT_S = 15.0


def writer_settings(engine: AsyncEngine, file: SqliteFile | None, run_file: Path) -> dict[str, Any]:
    """The settings for an engine. `file` is that of a SQLite store, `run_file` the run's counter file."""
    places, given = engine.dialect.create_connect_args(engine.url)
    connect = dict(given)
    settings: dict[str, Any] = {
        "backend": engine.dialect.name,
        "lock_file": str(writer_file(run_file).absolute()),
        "connect": connect,
    }
    if file is not None:
        connect["database"] = places[0]
        return settings | {"pragmas": sqlite_pragmas(), "path": str(file.path), "identity": file.identity}
    for name in ("prepared_statement_cache_size", "prepared_statement_name_func"):  # SQLAlchemy's own
        connect.pop(name, None)
    connect |= {"timeout": CONNECT_TIMEOUT_S, "command_timeout": COMMIT_TIMEOUT_S}
    return settings
