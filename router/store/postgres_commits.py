"""Connects to a PostgreSQL server: the writer process's connection, and what makes those of the serving process too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from router.store.entries import Row
from router.store.faults import BAD_VALUE_STATES

_T = TypeVar("_T")
#: Connections, too many of them, shutting down or starting up: the classes of errors after which the next host may do.
_NEXT_HOST = {"08", "53", "57"}


async def connect(*, host: Any = None, port: Any = None, timeout: float = 60.0, **settings: Any) -> Any:
    """`asyncpg.connect`. Each of several hosts (a list, with a list of ports) has an equal part of `timeout`: asyncpg would
    let the first one that does not answer use it up."""
    if not isinstance(host, list) or settings.get("target_session_attrs") == "prefer-standby":
        return await asyncpg.connect(host=host, port=port, timeout=timeout, **settings)
    last: Exception = ConnectionError("no host")
    for one, its_port in zip(host, port, strict=True):
        try:
            return await asyncpg.connect(host=one, port=its_port, timeout=timeout / len(host), **settings)
        except (OSError, asyncpg.TargetServerAttributeNotMatched) as error:
            last = error
        except asyncpg.PostgresError as error:
            if str(error.sqlstate)[:2] not in _NEXT_HOST:
                raise
            last = error
    raise last


class PostgresDatabase:
    """A PostgreSQL server as `router.store.commits.Database`. `connect` are the arguments of the function of that
    name. The event loop runs only while a statement does."""

    errors: tuple[type[Exception], ...] = (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        ValueError,
        TypeError,
        OverflowError,
    )

    def __init__(self, connect: Mapping[str, Any]) -> None:
        self._settings = connect
        self._runner = asyncio.Runner()
        self._connection: Any = None

    def is_bad_value(self, error: Exception) -> bool:
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return str(state)[:2] in BAD_VALUE_STATES
        if isinstance(error, asyncpg.ClientConfigurationError):
            return False  # though it is a ValueError: a certificate's file is missing
        return isinstance(error, (ValueError, TypeError, OverflowError))

    def begin(self, run_id: str) -> None:
        if self._connection is not None:
            try:
                self._begin(run_id)
                return
            except TimeoutError:
                raise
            except self.errors:
                self.abandon()  # the server has restarted since the last commit
        try:
            self._connection = self._run(connect(**self._settings))
        except Exception as error:
            # No host is a primary, a certificate is missing; where no PostgreSQL listens, asyncpg raises even AttributeError.
            raise ConnectionError from error
        self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        self._run(self._connection.execute("BEGIN"))
        # Only one transaction of a run at a time, as SQLite has in any case.
        self._run(self._connection.fetch("SELECT recorded FROM runs WHERE id = $1 FOR UPDATE", run_id))

    def present(self, ids: Sequence[str]) -> set[str]:
        query = "SELECT id FROM requests WHERE id = ANY($1)"
        return {row[0] for row in self._run(self._connection.fetch(query, ids))}

    def execute(self, sql: str, rows: Iterable[Row]) -> None:
        self._run(self._connection.executemany(_numbered(sql), rows))

    def commit(self) -> None:
        self._run(self._connection.execute("COMMIT"))

    def abandon(self) -> None:
        """Close the connection: the server rolls back, also where it answers nothing."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)


@lru_cache
def _numbered(sql: str) -> str:
    """A statement with PostgreSQL's marks for its parameters."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
