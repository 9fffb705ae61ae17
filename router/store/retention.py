"""Keeps the store within its age and size: the oldest requests are deleted first, in small batches.

Small transactions keep the writer from waiting. Freed pages are reused, and SQLite also returns them to the file system. Of
several replicas over one PostgreSQL only one prunes at a time. The tables `spend` and `keys` are never pruned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from sqlalchemy import delete, func, select, text

from router.background import failed
from router.store import tables
from router.store.async_engine import AsyncConnection, AsyncEngine
from router.store.database import driver_errors, safe_reason

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
BATCH_REQUESTS = 500
_PAUSE_S = 0.02
_DAY_S = 86_400.0
_MB = 1024 * 1024
_VACUUM_PAGES = 100
# PostgreSQL's header and line pointer of a row (28 bytes) and one index entry or two.
_POSTGRES_ROW_OVERHEAD_BYTES = 28 + 64
_POSTGRES_PAGES = text(
    "SELECT pg_relation_size(CAST(:name AS regclass)) / current_setting('block_size')::int"
)
_SAMPLE_PAGES = 2000
# Of PostgreSQL's advisory locks: "prune" in ASCII.
_LOCK = 0x7072756E65


class Retention:
    """Prunes a store by age (`retain_days`) and size (`max_mb`); None sets no limit."""

    def __init__(self, engine: AsyncEngine, *, retain_days: float | None, max_mb: float | None) -> None:
        self._engine = engine
        self._errors = driver_errors(engine)
        self._sqlite = engine.dialect.name == "sqlite"
        self._retain_s = None if retain_days is None else retain_days * _DAY_S
        self._max_bytes = None if max_mb is None else max_mb * _MB

    async def run(self) -> None:
        """Prune now and every minute, until cancelled."""
        while True:
            try:
                removed = await self.prune_alone(time.time())
                if removed:
                    log.info("retention: %d requests removed from the store", removed)
            except self._errors as error:
                log.warning("retention: %s; trying again later", safe_reason(error))
            except Exception as error:  # noqa: BLE001 (the task's root)
                failed("retention", error)
            await asyncio.sleep(INTERVAL_S)

    async def prune_alone(self, now: float) -> int:
        """`prune`, unless another replica does so now."""
        if self._sqlite:
            return await self.prune(now)
        async with self._engine.connect() as connection:
            # The lock belongs to the connection, so it ends with the process in any case.
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            if not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
                return 0
            try:
                removed = await self.prune(now)
            except BaseException:
                # A server that hangs would not answer: the lock ends with its connection.
                await connection.invalidate()
                raise
            await connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
            return removed

    async def prune(self, now: float) -> int:
        """Remove requests that are too old at `now` (seconds since the epoch) or too many; returns their number."""
        removed = 0
        if self._retain_s is not None:
            while count := await self._remove(now - self._retain_s):
                removed += count
                await asyncio.sleep(_PAUSE_S)
            await self._remove_runs(now - self._retain_s)
        if self._max_bytes is not None:
            batches = await self._batches_to_remove(self._max_bytes)
            while batches and (count := await self._remove(None)):
                removed += count
                batches = batches - 1 or await self._batches_to_remove(self._max_bytes)
                await asyncio.sleep(_PAUSE_S)
        if removed and self._sqlite:
            await self._shrink()
        return removed

    async def _remove(self, before: float | None) -> int:
        """Remove one batch of the oldest requests (received before a time, if given)."""
        requests = tables.requests
        query = select(requests.c.id)
        if before is not None:
            query = query.where(requests.c.received_at < before).order_by(requests.c.received_at)
        else:
            query = query.order_by(requests.c.id)
        async with self._engine.connect() as connection:
            ids = (await connection.execute(query.limit(BATCH_REQUESTS))).scalars().all()
        if not ids:
            return 0
        async with self._engine.begin() as connection:
            for column in (
                tables.attempts.c.request_id,
                tables.explanations.c.request_id,
                tables.feedback.c.request_id,
                requests.c.id,
            ):
                await connection.execute(delete(column.table).where(column.in_(ids)))
        return len(ids)

    async def _remove_runs(self, before: float) -> None:
        """Remove runs that have ended, are accounted for, and have no rows left."""
        table = tables.runs
        ended = func.coalesce(table.c.ended_at, table.c.started_at) < before
        async with self._engine.begin() as connection:
            await connection.execute(delete(table).where(table.c.clean.is_not(None), ended))

    async def _batches_to_remove(self, max_bytes: float) -> int:
        """How many batches of requests are to be removed before the size is measured again; 0 for a store within it."""
        async with self._engine.connect() as connection:
            if self._sqlite:
                pages = await _pragma(connection, "page_count")
                free = await _pragma(connection, "freelist_count")
                return int((pages - free) * await _pragma(connection, "page_size") > max_bytes)
            size_bytes, requests = await _postgres_live_bytes(connection)
        if size_bytes <= max_bytes:
            return 0
        return max(1, int(requests * (1.0 - max_bytes / size_bytes)) // BATCH_REQUESTS)

    async def _shrink(self) -> None:
        """Return free pages to the file system, a few at a time."""
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            while await _pragma(connection, "freelist_count") >= _VACUUM_PAGES:
                before = await _pragma(connection, "page_count")
                # A step of this statement frees one page, and `execute` takes only one step.
                file: Any = (await connection.get_raw_connection()).driver_connection
                await file.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
                if await _pragma(connection, "page_count") >= before:
                    return  # a file made without auto_vacuum keeps its pages for reuse
                await asyncio.sleep(_PAUSE_S)


async def _pragma(connection: AsyncConnection, name: str) -> int:
    return int((await connection.execute(text(f"PRAGMA {name}"))).scalar_one())


async def _postgres_live_bytes(connection: AsyncConnection) -> tuple[float, int]:
    """Bytes of the existing rows and the number of requests, estimated from some pages of each table. The size of
    PostgreSQL's files is no measure: deleting does not shrink them, so retention would never end."""
    total, requests = 0.0, 0
    for table in (tables.requests, tables.attempts, tables.explanations):
        pages = await connection.scalar(_POSTGRES_PAGES, {"name": table.name})
        share = min(1.0, _SAMPLE_PAGES / max(1, pages))
        # With a constant seed these are the same pages every time. Otherwise the highest of many estimates would decide.
        sample = f"{table.name} r TABLESAMPLE SYSTEM ({100 * share}) REPEATABLE (0)"
        query = f"SELECT count(*), coalesce(sum(pg_column_size(r)), 0) FROM {sample}"  # noqa: S608 (our own names)
        count, size = (await connection.execute(text(query))).one()
        total += (int(size) + count * _POSTGRES_ROW_OVERHEAD_BYTES) / share
        if table is tables.requests:
            requests = round(count / share)
    return total, requests
