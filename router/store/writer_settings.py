"""What a writer process receives when it starts: how to connect, and its SQL. SQLAlchemy compiles the SQL here, once,
because the writer process does not load SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Dialect, Table, any_, bindparam, func, select, update

from router.store import tables
from router.store.async_engine import AsyncEngine
from router.store.database import CONNECT_TIMEOUT_S, sqlite_pragmas
from router.store.entries import ATTEMPT_COLUMNS, EXPLANATION_COLUMNS, REQUEST_COLUMNS
from router.store.runs import writer_file
from router.store.sqlite_file import SqliteFile
from router.store.totals import Amounts

#: PostgreSQL's time for a statement; after it the connection is closed.
COMMIT_TIMEOUT_S = 15.0


def writer_settings(engine: AsyncEngine, file: SqliteFile | None, run_file: Path) -> dict[str, Any]:
    """The settings for an engine. `file` is that of a SQLite store, `run_file` the run's counter file."""
    places, given = engine.dialect.create_connect_args(engine.url)
    connect = dict(given)
    settings: dict[str, Any] = {
        "backend": engine.dialect.name,
        "sql": statements(engine.dialect),
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


def statements(dialect: Dialect) -> dict[str, str]:
    """SQL by name for SQLite or PostgreSQL. Parameters are positional, in the order in which `router.store.commits`
    gives them."""
    # Only the dialect in use: each takes megabytes of memory.
    insert = import_module(f"sqlalchemy.dialects.{dialect.name}").insert

    def sql(statement: Any, parameters: Sequence[str]) -> str:
        names = list(parameters) if statement.is_insert else None
        compiled = statement.compile(dialect=dialect, column_keys=names)
        if list(compiled.positiontup) != list(parameters):
            raise AssertionError(f"parameters in an unexpected order: {compiled.positiontup}")
        return str(compiled)

    def insert_rows(table: Table, columns: Sequence[str]) -> str:
        """Existing rows stay unchanged."""
        return sql(insert(table).on_conflict_do_nothing(), columns)

    requests, runs, spend = tables.requests, tables.runs, tables.spend
    added = insert(spend)
    counts = ("arrived", "finished", "dropped")
    return {
        # Only one transaction of a run at a time. SQLite has one transaction at a time in any case.
        "lock_run": sql(
            select(runs.c.recorded).where(runs.c.id == bindparam("run_id")).with_for_update(), ["run_id"]
        ),
        "present": sql(select(requests.c.id).where(requests.c.id == any_(bindparam("ids"))), ["ids"])
        if dialect.name == "postgresql"
        else "SELECT id FROM requests WHERE id IN ({})",
        "insert_requests": sql(insert(requests), REQUEST_COLUMNS),  # refuses rows that are there
        "insert_attempts": insert_rows(tables.attempts, ATTEMPT_COLUMNS),
        "insert_explanations": insert_rows(tables.explanations, EXPLANATION_COLUMNS),
        "add_spending": sql(
            added.on_conflict_do_update(
                index_elements=list(spend.primary_key.columns),
                set_={name: spend.c[name] + added.excluded[name] for name in Amounts._fields},
            ),
            [column.name for column in spend.columns],
        ),
        "count": sql(
            update(runs)
            .where(runs.c.id == bindparam("run_id"))
            .values(
                {name: func.coalesce(bindparam(name, type_=BigInteger), runs.c[name]) for name in counts}
                | {"recorded": runs.c.recorded + bindparam("added")}
            ),
            ["arrived", "finished", "added", "dropped", "run_id"],
        ),
    }
