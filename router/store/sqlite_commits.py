"""The writer process's connection to a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import Any

from router.store.entries import Row
from router.store.faults import LostFileError, lost_file

# sqlite3 asks for an adapter of each of these values. To find none takes it 2,500 instructions.
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(bytes, bytes)

# Both stay under 999 parameters, the limit of older SQLite versions.
_IDS_A_QUERY = 500
#: Rows of one statement: an eighth fewer instructions than one by one. With more rows it takes longer to compile.
_ROWS_AT_ONCE = 8


class SqliteDatabase:
    """A SQLite file as `router.store.commits.Database`. `connect` are the arguments of `sqlite3.connect`, `pragmas` the
    statements for a new connection. `path` and `identity` (device and inode) say which file it is: no other is written."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError)

    def __init__(
        self, connect: Mapping[str, Any], pragmas: Sequence[str], path: str, identity: Sequence[int]
    ) -> None:
        self._connect = connect
        self._pragmas = pragmas
        self._path = path
        self._identity = (identity[0], identity[1])
        self._connection: sqlite3.Connection | None = None

    def is_bad_value(self, error: Exception) -> bool:
        if isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError)):
            return "bind" in str(error)  # sqlite3's words for a value of a type that it cannot bind
        return isinstance(
            error, (sqlite3.DataError, sqlite3.IntegrityError, ValueError, TypeError, OverflowError)
        )

    def begin(self, run_id: str) -> None:
        self._require_file()
        if self._connection is None:
            connection = sqlite3.connect(**self._connect, isolation_level=None)
            try:
                for pragma in self._pragmas:
                    connection.execute(pragma)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        self._connection.execute("BEGIN IMMEDIATE")

    def present(self, ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(ids), _IDS_A_QUERY):
            part = ids[start : start + _IDS_A_QUERY]
            query = f"SELECT id FROM requests WHERE id IN ({', '.join('?' * len(part))})"  # noqa: S608 (marks only)
            found.update(row[0] for row in self._open.execute(query, part))
        return found

    def execute(self, sql: str, rows: Iterable[Row]) -> None:
        # To bind a value takes 1,200 instructions, so columns without any are not bound.
        columns = list(zip(*rows, strict=True))
        given = [column[0] is not None or column.count(None) < len(column) for column in columns]
        marks = ["?" if each else "NULL" for each in given]
        sql = sql.replace("?", "{}").format(*marks)
        bound = list(zip(*compress(columns, given), strict=True))
        together = len(bound) - len(bound) % _ROWS_AT_ONCE
        if together:
            # A statement that fails ends the transaction, and so needs no journal of its own.
            row = f"({', '.join(marks)})"
            many = sql.replace(row, ", ".join([row] * _ROWS_AT_ONCE)).replace("INSERT", "INSERT OR ROLLBACK")
            values = chain.from_iterable(bound[:together])
            self._open.executemany(many, zip(*[values] * (sum(given) * _ROWS_AT_ONCE), strict=True))
        self._open.executemany(sql, bound[together:])

    def commit(self) -> None:
        self._require_file()
        self._open.execute("COMMIT")

    def abandon(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._connection = None
                connection.close()

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None  # noqa: S101 (`begin` opens it)
        return self._connection

    def _require_file(self) -> None:
        fault = lost_file(self._path, self._identity)
        if fault is not None:
            raise LostFileError(fault)
