"""Takes over from killed processes: writes the rows that they spooled, then counts the rows that they lost.

A row may have been committed just before the kill and still be in the spool. So the rows in the database are looked up
first; only the others are written and counted, in one transaction with the totals of their run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from router.store import runs, spool, tables
from router.store.database import driver_errors, is_bad_value
from router.store.entries import Entry, corrected, from_line
from router.store.inserts import EntryInsert
from router.store.records import REQUEST_COLUMNS
from router.store.spending import Upsert, totals_of

log = logging.getLogger(__name__)

_BATCH = 500
_PAUSE_S = 0.002  # between two batches, so that this process writes its own records
_LONGEST_PAUSE_S = 5.0
_ID = REQUEST_COLUMNS.index("id")


class Takeover:
    """Processes the counter files, and the spools beside them, of processes that are gone."""

    def __init__(self, url: URL, engine: AsyncEngine) -> None:
        self._engine = engine
        self._errors: tuple[type[Exception], ...] = (
            *driver_errors(url),
            ValueError,
            TypeError,
            OverflowError,
        )
        self._insert = EntryInsert(url.get_backend_name())
        self._upsert = Upsert(url.get_backend_name())

    async def run(self, prefix: Path) -> None:
        """Process everything; waits for a database that is away."""
        for path, fd in runs.orphans(prefix):
            try:
                run_id = path.name.removeprefix(prefix.name)
                pause_s = 0.1
                while True:
                    try:
                        await self._take_up(path, run_id, fd)
                        break
                    except self._errors as error:
                        log.warning("records of a killed process wait (%s)", type(error).__name__)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            finally:
                os.close(fd)

    async def _take_up(self, path: Path, run_id: str, fd: int) -> None:
        written = damaged = 0
        for segment in spool.segments(path):
            offset = 0
            while lines := spool.read_lines(segment, offset, _BATCH):
                offset += sum(map(len, lines))
                found = list(map(from_line, lines))
                entries = [entry for entry in found if entry is not None]
                damaged += len(found) - len(entries)
                written += await self._write(run_id, entries)
                await asyncio.sleep(_PAUSE_S)
            if offset < segment.stat().st_size:
                damaged += 1  # the line in which it was killed
            segment.unlink()
        if written or damaged:
            log.info(
                "%d records of the killed run %s were written from its spool, %d lines were torn",
                written,
                run_id,
                damaged,
            )
        await runs.account(self._engine, run_id, fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    async def _write(self, run_id: str, entries: list[Entry]) -> int:
        """Write entries. A batch with a bad entry is halved until the entry is found."""
        try:
            return await self._commit(run_id, entries)
        except self._errors as error:
            if not is_bad_value(error):
                raise
        if len(entries) > 1:
            half = len(entries) // 2
            return await self._write(run_id, entries[:half]) + await self._write(run_id, entries[half:])
        try:
            return await self._commit(run_id, [corrected(entries[0])])
        except self._errors as error:
            if not is_bad_value(error):
                raise
            log.error("a spooled record was refused by the database (%s)", type(error).__name__)
            return 0

    async def _commit(self, run_id: str, entries: list[Entry]) -> int:
        requests, table = tables.requests, tables.runs
        async with self._engine.begin() as connection:
            ids = [entry.request[_ID] for entry in entries]
            there = set(await connection.scalars(select(requests.c.id).where(requests.c.id.in_(ids))))
            entries = [entry for entry in entries if entry.request[_ID] not in there]
            if entries:
                await self._insert.run(connection, entries)
                totals = await totals_of(connection, run_id)
                await self._upsert.run(connection, run_id, totals.with_entries(entries))
                await connection.execute(
                    table.update()
                    .where(table.c.id == run_id)
                    .values(recorded=table.c.recorded + len(entries))
                )
        return len(entries)
