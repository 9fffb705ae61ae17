"""The batched writer: `put` appends to a list, one task turns batches into rows.

A batch is written when 100 ms have passed or 500 records wait. While the database is slow, locked or away
the writer tries again with growing pauses; the buffer is bounded, and only what comes after it is full is
dropped, counted. Records become rows in small slices, so that the event loop is never held for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from itertools import chain

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from router.store import explanations, tables
from router.store.database import Insert, driver_errors, is_bad_value
from router.store.records import (
    ATTEMPT_COLUMNS,
    REQUEST_COLUMNS,
    RequestRecord,
    Row,
    attempt_row,
    clean_prompt,
    request_row,
    salvage,
)
from router.store.runs import Counts

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
FLUSH_RECORDS = 500
MAX_PENDING_RECORDS = 200_000
CLOSE_TIMEOUT_S = 10.0
_MAX_BATCH = 2000
# About a third of a millisecond of work between two turns of the event loop.
_SLICE = 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

Rows = tuple[list[Row], list[Row], list[Row]]

_UNFIT = (KeyError, TypeError, ValueError, AttributeError)
_EXPLANATION_COLUMNS = ("request_id", "blob", "prompt")


class Writer:
    """Writes records of finished requests. One a process; used from the event loop's thread only.

    `retries` counts tries that the database did not take."""

    def __init__(
        self,
        url: URL,
        engine: AsyncEngine,
        counts: Counts,
        *,
        keep_prompts: bool = False,
        max_pending: int = MAX_PENDING_RECORDS,
        interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        self._engine = engine
        self._counts = counts
        self._slots = counts.slots
        self._keep_prompts = keep_prompts
        self._max_pending = max_pending
        self._interval_s = interval_s
        self.retries = 0
        self._errors: tuple[type[Exception], ...] = (
            *driver_errors(url),
            ValueError,
            TypeError,
            OverflowError,
        )
        self._buffer: list[RequestRecord] = []
        self._batch: list[RequestRecord] = []  # being written
        self._recorded = 0  # committed
        self._refused = 0  # rows that no database takes
        self._wake = asyncio.Event()
        self._written = asyncio.Condition()
        self._closing = False
        backend = url.get_backend_name()
        inserts = []
        for table, columns in (
            (tables.requests, REQUEST_COLUMNS),
            (tables.attempts, ATTEMPT_COLUMNS),
            (tables.explanations, _EXPLANATION_COLUMNS),
        ):
            statement = Insert(table, backend)
            if statement.columns != columns:
                raise AssertionError(f"parameters of {table.name} in an unexpected order")
            inserts.append(statement)
        self._inserts = tuple(inserts)
        self._task = asyncio.create_task(self._run(), name="store-writer")

    # --- the hot path -------------------------------------------------------------------------------
    def arrived(self) -> None:
        """A request reached the router (counted, so that a kill does not hide it)."""
        self._slots[1] += 1

    def put(self, record: RequestRecord) -> None:
        """Take a finished request's record; the caller must not change it afterwards."""
        slots = self._slots
        slots[2] += 1
        buffer = self._buffer
        if len(buffer) >= self._max_pending:
            slots[3] += 1
            return
        buffer.append(record)
        if len(buffer) == FLUSH_RECORDS:
            self._wake.set()

    # --- what it has done ---------------------------------------------------------------------------
    @property
    def recorded(self) -> int:
        """Records committed by this run."""
        return self._recorded

    @property
    def pending(self) -> int:
        """Records taken and not yet committed."""
        return len(self._buffer) + len(self._batch)

    def find(self, request_id: str) -> RequestRecord | None:
        """A record that is not yet committed."""
        for record in chain(reversed(self._buffer), self._batch):
            if record.id == request_id:
                return record
        return None

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put before is committed; False when the database takes too long."""
        if not self.pending:
            return True
        target = self._counts.finished - self._counts.dropped + self._refused
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s), self._written:
                await self._written.wait_for(lambda: self._recorded + self._refused >= target)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Write all that is left and end; the number of records that could not be written in time."""
        self._closing = True
        self._wake.set()
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        left = self.pending
        if left:
            log.error("%d records could not be written: the database did not take them in time", left)
        return left

    # --- the task -----------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            if not self._closing and len(self._buffer) < FLUSH_RECORDS:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._wake.wait()
            self._wake.clear()
            if self._buffer:
                self._batch, self._buffer = self._buffer[:_MAX_BATCH], self._buffer[_MAX_BATCH:]
                try:
                    await self._write(list(self._batch))
                except Exception:  # the task's root: a fault here must not end recording
                    log.exception("%d records could not be written", len(self._batch))
                    self._refuse(len(self._batch))
                async with self._written:
                    self._written.notify_all()
            elif self._closing:
                return

    async def _write(self, records: list[RequestRecord]) -> None:
        """Write records; halved to find the one that no database takes, and that one without its bad parts."""
        try:
            rows: Rows | None = await self._rows(records)
        except _UNFIT:
            rows = None
        if rows is not None and await self._commit_patiently(rows, len(records)):
            return
        if len(records) > 1:
            half = len(records) // 2
            await self._write(records[:half])
            await self._write(records[half:])
            return
        try:
            rows = _salvaged_rows(records[0])
        except _UNFIT as error:
            log.error("a record makes no row (%s)", type(error).__name__)
            rows = None
        if rows is None or not await self._commit_patiently(rows, 1):
            self._refuse(1)

    async def _commit_patiently(self, rows: Rows, count: int) -> bool:
        """Commit, however long the database takes; False when it will never take these rows."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._commit(rows, count)
                return True
            except self._errors as error:
                # The type only: a driver's message may quote the row.
                name = type(error).__name__
                if is_bad_value(error):
                    log.error("rows were refused by the database (%s)", name)
                    return False
                self.retries += 1
                log.warning("the store takes no records (%s); %d wait", name, self.pending)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _rows(self, records: list[RequestRecord]) -> Rows:
        request_rows: list[Row] = []
        attempt_rows: list[Row] = []
        explanation_rows: list[Row] = []
        for start in range(0, len(records), _SLICE):
            for record in records[start : start + _SLICE]:
                request_id = record.id
                request_rows.append(request_row(record))
                attempt_rows += [attempt_row(request_id, attempt) for attempt in record.attempt_records]
                blob = explanations.encode(record)
                if blob is not None:
                    prompt = clean_prompt(record.prompt) if self._keep_prompts else None
                    explanation_rows.append((request_id, blob, prompt))
            await asyncio.sleep(0)
        return request_rows, attempt_rows, explanation_rows

    async def _commit(self, rows: Rows, count: int) -> None:
        recorded = self._recorded + count
        runs, counts = tables.runs, self._counts
        async with self._engine.begin() as connection:
            for statement, part in zip(self._inserts, rows, strict=True):
                if part:
                    await statement.run(connection, part)
            await connection.execute(
                runs.update()
                .where(runs.c.id == counts.run_id)
                .values(
                    arrived=counts.arrived,
                    finished=counts.finished,
                    recorded=recorded,
                    dropped=counts.dropped,
                )
            )
        self._recorded = recorded
        del self._batch[:count]

    def _refuse(self, count: int) -> None:
        self._refused += count
        self._slots[3] += count
        del self._batch[:count]


def _salvaged_rows(record: RequestRecord) -> Rows:
    """Rows of one record whose values made trouble: made fit, and without the explanation if that is it."""
    try:
        blob = explanations.encode(record)
    except _UNFIT:
        blob = None
    return (
        [salvage(request_row(record))],
        [salvage(attempt_row(record.id, attempt)) for attempt in record.attempt_records],
        [] if blob is None else [(record.id, blob, None)],
    )
