"""Writes many rows at once."""

from __future__ import annotations

from itertools import chain
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from router.store import tables
from router.store.entries import Entry
from router.store.records import ATTEMPT_COLUMNS, REQUEST_COLUMNS, Row

_EXPLANATION_COLUMNS = ("request_id", "blob", "prompt")


class EntryInsert:
    """Writes entries into their three tables. Existing rows stay unchanged."""

    def __init__(self, backend: str) -> None:
        inserts = []
        for table, columns in (
            (tables.requests, REQUEST_COLUMNS),
            (tables.attempts, ATTEMPT_COLUMNS),
            (tables.explanations, _EXPLANATION_COLUMNS),
        ):
            insert = Insert(table, backend)
            if insert.columns != columns:
                raise AssertionError(f"parameters of {table.name} in an unexpected order")
            inserts.append(insert)
        self._requests, self._attempts, self._explanations = inserts

    async def run(self, connection: AsyncConnection, entries: list[Entry]) -> None:
        """Write entries."""
        for insert, rows in (
            (self._requests, [entry.request for entry in entries]),
            (self._attempts, [attempt for entry in entries for attempt in entry.attempts]),
            (self._explanations, [entry.explanation for entry in entries if entry.explanation is not None]),
        ):
            if rows:
                await insert.run(connection, rows)


class Insert:
    """`INSERT ... ON CONFLICT DO NOTHING` of many rows at once, compiled once.

    Doing nothing on a conflict makes it safe to repeat a batch whose commit was not acknowledged. For SQLite one statement
    inserts several rows: its driver releases Python's lock with each statement, which costs more under load than the
    insert.
    """

    _ROWS_A_STATEMENT = 20  # stays under 999 parameters, the limit of older SQLite versions

    def __init__(self, table: Table, backend: str) -> None:
        self.one, self.columns = _insert_sql(table, backend)
        self.several: str | None = None
        if backend == "sqlite":
            row = f"({', '.join('?' * len(self.columns))})"
            self.several = self.one.replace(row, ", ".join([row] * self._ROWS_A_STATEMENT))

    async def run(self, connection: AsyncConnection, rows: list[Row]) -> None:
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
