"""The batched writer: `put` appends to a list, one task makes batches of it, another task commits them.

    buffer -> committing -> database     no earlier record waits
    buffer -> spool -> database          the database is slow or does not answer

The intake takes the buffer every 100 ms, or when 500 records wait. If no earlier record waits, its batch is committed at
once (`_committing`). A record that is not committed 160 ms after its `put` goes into the spool on disk, which
bounds the loss of a killed process. From then on everything goes through the spool, in order, until the spool is empty.
The buffer grows only while the spool is full. When the buffer is full too, records are dropped and counted. Long work is
done in small slices, so that it never holds the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from itertools import chain

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from router.background import failed
from router.core.types import Outcome
from router.store import tables
from router.store.database import driver_errors, file_fault, is_bad_value, safe_reason
from router.store.entries import Entry, corrected, from_line, make_entry, to_line
from router.store.inserts import EntryInsert
from router.store.records import RequestRecord
from router.store.runs import Counts
from router.store.spending import Totals, Upsert, totals_of
from router.store.spool import Spool
from router.store.sqlite_file import SqliteFile

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
#: A record that is not committed this long after its `put` goes to the spool.
SPOOL_AFTER_S = 0.16
FLUSH_RECORDS = 500
MAX_PENDING_RECORDS = 20_000
#: How many requests without a valid key are recorded: at once, and in each second. Otherwise callers without a key
#: could fill the buffer, the spool or the database.
UNAUTHENTICATED_AT_ONCE = 100.0
UNAUTHENTICATED_PER_S = 0.1
CLOSE_TIMEOUT_S = 10.0
#: PostgreSQL's time for a batch; after it the connection is closed.
COMMIT_TIMEOUT_S = 15.0
_MAX_BATCH = 2000
# About a third of a millisecond of work between two turns of the event loop.
_SLICE = 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_END_TIMEOUT_S = 3.0
#: Spooled records that can still be read from memory, the newest.
_RECENT_RECORDS = 1000


class Writer:
    """Writes records of finished requests. One a process; used from the event loop's thread only.

    `retries` counts failed commits. `away`: the last commit failed; `fault`: what is wrong with the SQLite file, if that
    is the reason. Without a `spool`, records that cannot be committed wait in memory.
    """

    def __init__(
        self,
        url: URL,
        engine: AsyncEngine,
        counts: Counts,
        *,
        spool: Spool | None = None,
        file: SqliteFile | None = None,
        keep_prompts: bool = False,
        max_pending: int = MAX_PENDING_RECORDS,
        interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        self._engine = engine
        self._counts = counts
        self._slots = counts.slots
        self._spool = spool
        self._file = file
        self._keep_prompts = keep_prompts
        self._max_pending = max_pending
        self._interval_s = interval_s
        self.retries = 0
        self.away = False
        self.fault: str | None = None
        self._errors: tuple[type[Exception], ...] = (
            *driver_errors(url),
            ValueError,
            TypeError,
            OverflowError,
        )
        self._commit_timeout_s = COMMIT_TIMEOUT_S if url.get_backend_name() == "postgresql" else None
        self._buffer: list[RequestRecord] = []
        self._taken: list[RequestRecord] = []  # the last batch of the intake
        self._committing: list[Entry] = []  # being committed: while the spool is empty, or its first lines
        self._committing_spooled = False
        self._recent: deque[RequestRecord] = deque(maxlen=_RECENT_RECORDS)  # the newest in the spool
        self._unauthenticated = (
            UNAUTHENTICATED_AT_ONCE  # requests without a valid key that may be recorded now
        )
        self._unauthenticated_at = time.monotonic()
        self._recorded = 0  # committed
        self._refused = 0  # rows that no database accepts
        self._totals = Totals()
        self._insert = EntryInsert(url.get_backend_name())
        self._upsert = Upsert(url.get_backend_name())
        self._wake = asyncio.Event()
        self._work = asyncio.Event()
        self._written = asyncio.Condition()
        self._closing = False
        self._ending = asyncio.Event()
        self._intake = asyncio.create_task(self._take_in(), name="store-intake")
        self._committer = asyncio.create_task(self._commit_all(), name="store-writer")

    # --- the hot path -------------------------------------------------------------------------------
    def arrived(self) -> None:
        """Count a request that reached the router, so that a kill does not hide it."""
        self._slots[1] += 1

    def put(self, record: RequestRecord) -> None:
        """Add a finished request's record, which the caller must not change afterwards. Of requests without a valid key
        only a few are kept."""
        slots = self._slots
        if record.outcome is Outcome.REJECTED_AUTH and not self._keeps_unauthenticated():
            slots[1] -= 1  # not counted as arrived: the metrics count it
            return
        slots[2] += 1
        buffer = self._buffer
        if len(buffer) >= self._max_pending:
            slots[3] += 1
            return
        buffer.append(record)
        if len(buffer) == FLUSH_RECORDS:
            self._wake.set()

    def _keeps_unauthenticated(self) -> bool:
        """Whether to keep one more row of a request without a valid key."""
        now = time.monotonic()
        self._unauthenticated = min(
            UNAUTHENTICATED_AT_ONCE,
            self._unauthenticated + (now - self._unauthenticated_at) * UNAUTHENTICATED_PER_S,
        )
        self._unauthenticated_at = now
        if self._unauthenticated < 1:
            return False
        self._unauthenticated -= 1
        return True

    # --- what it has done ---------------------------------------------------------------------------
    @property
    def recorded(self) -> int:
        """Records committed by this run."""
        return self._recorded

    @property
    def pending(self) -> int:
        """Records added and not yet committed."""
        return self._counts.finished - self._counts.dropped - self._recorded

    @property
    def spooled(self) -> tuple[int, int]:
        """Records in the spool, and its bytes."""
        return (0, 0) if self._spool is None else (self._spool.rows, self._spool.bytes)

    @property
    def full(self) -> bool:
        """Whether no more records can be kept: the spool (without one: the buffer) is full."""
        return len(self._buffer) >= self._max_pending or (self._spool is not None and self._spool.full)

    def find(self, request_id: str) -> RequestRecord | None:
        """A record that is not yet committed and still in memory."""
        for record in chain(reversed(self._buffer), self._taken, reversed(self._recent)):
            if record.id == request_id:
                return record
        return None

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are committed. False if the database takes too long, or, at once, if it is away."""
        if not self.pending:
            return True
        target = self._counts.finished - self._counts.dropped + self._refused
        self._wake.set()

        def settled() -> bool:
            return self.away or self._recorded + self._refused >= target

        try:
            async with asyncio.timeout(timeout_s), self._written:
                await self._written.wait_for(settled)
        except TimeoutError:
            return False
        return self._recorded + self._refused >= target

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Write what is left and end; returns the number of records that were not committed in time. The next process
        writes those in the spool."""
        self._closing = True
        self._wake.set()
        self._work.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._written:
                # Nothing is lost without waiting for a database that is away.
                await self._written.wait_for(lambda: not self.pending or (self.away and self._all_spooled()))
        self._ending.set()
        self._work.set()
        self._intake.cancel()
        # SQLite answers soon, and a connection that is abandoned in mid-statement is never closed.
        await asyncio.wait({self._committer}, timeout=_END_TIMEOUT_S)
        self._committer.cancel()
        # A connection to a server that vanished may not close.
        await asyncio.wait({self._intake, self._committer}, timeout=_END_TIMEOUT_S)
        self._spool_the_rest()
        left = self.pending
        spooled, _ = self.spooled
        if spooled:
            log.warning("%d records wait on disk for the next start", spooled)
        if left > spooled:
            log.error(
                "%d records could not be written: the database did not accept them in time", left - spooled
            )
        if self._spool is not None:
            self._spool.close()
        return left

    def _all_spooled(self) -> bool:
        return self._spool is not None and self.pending == self._spool.rows

    def _spool_the_rest(self) -> None:
        if self._spool is None:
            return
        records = [*self._taken, *self._buffer]  # taken, but not yet turned into rows
        if self._committing_unspooled:  # these entries were made from the records taken
            self._committing_spooled = self._spool.append([to_line(entry) for entry in self._committing])
            records = self._buffer
        entries = [make_entry(record, keep_prompts=self._keep_prompts) for record in records]
        self._spool.append([to_line(entry) for entry in entries if entry is not None])

    # --- the intake ---------------------------------------------------------------------------------
    async def _take_in(self) -> None:
        clock = asyncio.get_running_loop().time
        taken_at = clock()
        while True:
            wait_s = taken_at + self._interval_s - clock()
            if wait_s > 0 and (len(self._buffer) < FLUSH_RECORDS or self._blocked) and not self._closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
            self._wake.clear()
            put_after, taken_at = taken_at, clock()
            if self._file is not None:
                self._file.check()
            try:
                await self._take(put_after + SPOOL_AFTER_S)
            except Exception as error:  # noqa: BLE001 (the task's root: a fault here must not end recording)
                failed("store-intake", error)
                self._refuse(len(self._taken))
                self._taken = []
            if self._closing:
                # No more records arrive; the rest is taken in turns.
                await asyncio.sleep(0.01)

    @property
    def _blocked(self) -> bool:
        """Whether nothing can be taken now: something is ahead, and there is no room behind it."""
        return self._ahead and (self._spool is None or self._spool.full or self._committing_unspooled)

    @property
    def _ahead(self) -> bool:
        return bool(self._committing) or bool(self._spool and self._spool.rows)

    @property
    def _committing_unspooled(self) -> bool:
        return bool(self._committing) and not self._committing_spooled

    async def _take(self, deadline: float) -> None:
        """Take a part of the buffer. It must be committed or in the spool by `deadline` (on the loop's clock)."""
        if self._committing_unspooled:  # from the last turn, when the spool was full
            await self._spool_committing()
        if not self._buffer or self._blocked:
            return
        if self._ahead and self._spool is not None:
            await self._take_to_spool(self._spool)
            return
        self._taken = self._swap(_MAX_BATCH)
        entries = await self._entries(self._taken)
        if not entries:
            self._taken = []
            await self._notify()
            return
        self._committing, self._committing_spooled = entries, False
        self._work.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline), self._written:
                await self._written.wait_for(lambda: not self._committing)
        if self._committing:
            await self._spool_committing()

    def _swap(self, limit: int) -> list[RequestRecord]:
        taken, self._buffer = self._buffer[:limit], self._buffer[limit:]
        return taken

    async def _spool_committing(self) -> None:
        """Write the entries that are being committed to the spool, except those that were committed meanwhile."""
        if self._spool is None or self._spool.full:
            return
        entries = self._committing
        lines = await self._lines(entries)
        # Entries that were committed while the lines were made are no longer in the list.
        lines = lines[len(lines) - len(entries) :]
        if entries and entries is self._committing and self._spool.append(lines):
            self._committing_spooled = True
            self._recent.extend(self._taken)
            self._taken = []

    async def _take_to_spool(self, spool: Spool) -> None:
        self._taken = self._swap(FLUSH_RECORDS)
        lines = await self._lines(await self._entries(self._taken))
        if not lines or spool.append(lines):
            self._recent.extend(self._taken)
        else:
            self._buffer[:0] = self._taken
        self._taken = []
        self._work.set()

    async def _entries(self, records: list[RequestRecord]) -> list[Entry]:
        entries: list[Entry] = []
        for start in range(0, len(records), _SLICE):
            for record in records[start : start + _SLICE]:
                entry = make_entry(record, keep_prompts=self._keep_prompts)
                if entry is None:
                    log.error("a record cannot become a row")
                    self._refuse(1)
                else:
                    entries.append(entry)
            await asyncio.sleep(0)
        return entries

    async def _lines(self, entries: list[Entry]) -> list[bytes]:
        entries = entries.copy()  # a commit may shorten it meanwhile
        lines: list[bytes] = []
        for start in range(0, len(entries), _SLICE):
            lines += map(to_line, entries[start : start + _SLICE])
            await asyncio.sleep(0)
        return lines

    # --- the committer ------------------------------------------------------------------------------
    async def _commit_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ending.is_set():
            if not self._ahead:
                self._work.clear()
                await self._work.wait()
                continue
            try:
                await self._write(self._committing.copy() or await self._from_spool())
                self.away = False
                self.fault = None
                pause_s = _FIRST_PAUSE_S
                await self._notify()
                continue
            except self._errors as error:
                self.retries += 1
                self.away = True
                self.fault = file_fault(error)
                log.warning("the store accepts no records: %s; %d wait", safe_reason(error), self.pending)
                if self._committing_spooled:
                    self._committing = []  # from now on read from the spool
                    self._committing_spooled = False
            except Exception as error:  # noqa: BLE001 (the task's root: a fault here must not end recording)
                failed("store-writer", error)
                count = len(self._committing) or 1
                self._refuse(count)
                self._advance(count)
            await self._notify()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _notify(self) -> None:
        async with self._written:
            self._written.notify_all()

    async def _from_spool(self) -> list[Entry]:
        """The first entries of the spool. Damaged lines count as dropped."""
        if self._spool is None:
            return []
        lines = self._spool.read(FLUSH_RECORDS)
        self._refuse(self._spool.take_lost())
        entries: list[Entry] = []
        for start in range(0, len(lines), _SLICE):
            for line in lines[start : start + _SLICE]:
                entry = from_line(line)
                if entry is not None:
                    entries.append(entry)
                    continue
                if not entries:
                    log.error("a damaged line in the spool is dropped")
                    self._refuse(1)
                    self._spool.remove(1)
                    continue
                return entries
            await asyncio.sleep(0)
        return entries

    async def _write(self, entries: list[Entry]) -> None:
        """Commit the first entries. A batch with a bad entry is halved until the entry is found, which is then corrected.

        Raises what the driver raises for a database that is away.
        """
        if not entries:
            return
        try:
            await self._commit(entries)
        except self._errors as error:
            if not is_bad_value(error):
                raise
            log.error("rows were refused by the database (%s)", type(error).__name__)
        else:
            self._advance(len(entries))
            return
        if len(entries) > 1:
            half = len(entries) // 2
            await self._write(entries[:half])
            await self._write(entries[half:])
            return
        try:
            await self._commit([corrected(entries[0])])
        except self._errors as error:
            if not is_bad_value(error):
                raise
            self._refuse(1)
        self._advance(1)

    def _advance(self, count: int) -> None:
        """The first entries are done."""
        spooled = not self._committing_unspooled
        del self._committing[:count]
        if not self._committing and not spooled:
            self._taken = []
        if spooled and self._spool is not None:
            self._spool.remove(count)
            if not self._spool.rows:
                self._recent.clear()

    async def _commit(self, entries: list[Entry]) -> None:
        recorded = self._recorded + len(entries)
        runs, counts = tables.runs, self._counts
        async with asyncio.timeout(self._commit_timeout_s), self._engine.begin() as connection:
            await self._insert.run(connection, entries)
            if self._totals.forgot(entries):
                self._totals = await totals_of(connection, counts.run_id)
            totals = self._totals.with_entries(entries)
            await self._upsert.run(connection, counts.run_id, totals)
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
        self._totals.adopt(totals)
        self._recorded = recorded

    def _refuse(self, count: int) -> None:
        self._refused += count
        self._slots[3] += count
