"""Reads a table in batches, in the order of its key, with memory for one batch.

Each batch is a query of its own that continues after the last key, so a long export keeps no transaction open. Rows that
are written meanwhile may be included; no row comes twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, func, select, tuple_

from router.store import tables
from router.store.async_engine import AsyncEngine
from router.store.totals import today

#: What can be extracted.
TABLES = {table.name: table for table in (tables.requests, tables.attempts, tables.feedback, tables.spend)}
BATCH_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Extract:
    """Selects rows of a table: of requests received from `since` until before `until` (seconds since the epoch; for `spend`:
    days that overlap), and of some policies."""

    table: Table
    since: float | None = None
    until: float | None = None
    policies: Sequence[str] = ()

    async def count(self, engine: AsyncEngine) -> int:
        """The current number of rows."""
        query = self._filtered(select(func.count()).select_from(self.table))
        async with engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def batches(
        self, engine: AsyncEngine, rows: int = BATCH_ROWS
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """All rows, with values in the order of the table's columns."""
        key = list(self.table.primary_key.columns)
        at = [list(self.table.columns).index(column) for column in key]
        after: tuple[Any, ...] | None = None
        while True:
            query = self._filtered(select(self.table)).order_by(*key).limit(rows)
            if after is not None:
                query = query.where(key[0] > after[0] if len(key) == 1 else tuple_(*key) > after)
            async with engine.connect() as connection:
                found = [tuple(row) for row in await connection.execute(query)]
            if found:
                yield found
                after = tuple(found[-1][i] for i in at)
            if len(found) < rows:
                return

    def _filtered(self, query: Select[Any]) -> Select[Any]:
        table, requests = self.table, tables.requests
        conditions: list[ColumnElement[bool]] = []
        if table is tables.spend:
            if self.since is not None:
                conditions.append(table.c.day >= today(self.since))
            if self.until is not None:
                conditions.append(table.c.day <= _last_day(self.until))
            policy = table.c.policy
        else:
            received_at, policy = requests.c.received_at, requests.c.policy
            if self.since is not None:
                conditions.append(received_at >= self.since)
            if self.until is not None:
                conditions.append(received_at < self.until)
        if self.policies:
            conditions.append(policy.in_(self.policies))
        if conditions and table in {tables.attempts, tables.feedback}:
            query = query.join(requests, requests.c.id == table.c.request_id)
        return query.where(*conditions)


def _last_day(until: float) -> str:
    """The day of the last moment before a time."""
    at = datetime.fromtimestamp(until, UTC)
    midnight = (at.hour, at.minute, at.second, at.microsecond) == (0, 0, 0, 0)
    return today(until - 86_400.0 if midnight else until)
