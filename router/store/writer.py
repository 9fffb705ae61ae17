"""Keeps the lines of finished requests until the writer process has committed them.

    buffer -> committing -> database     no earlier record waits
    buffer -> spool -> database          the database is slow or does not answer

Records become lines a few at a time, which takes a fifth of the time that one by one takes: code and data stay in the
processor's caches. The buffer is handed to the committer every 100 ms, which sends batches to the writer process
(`router.store.writer_process`) and waits for each answer. What is not committed at a tick, every 50 ms, and older than
`SPOOL_AFTER_S` goes into the spool on disk, which bounds what is lost when both processes are killed. From the next tick on
everything goes through the spool, in order, until the spool is empty. The buffer grows only while the spool is full. When
the buffer is full too, records are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque

from router.background import failed, surviving
from router.core.types import Outcome
from router.store import explanations
from router.store.commits import Run
from router.store.entries import Entry, checked, clean_prompt, corrected_row, find_line, from_line, to_line
from router.store.records import RequestRecord, attempt_row, request_row
from router.store.runs import Counts
from router.store.spool import Spool
from router.store.sqlite_file import SqliteFile
from router.store.writer_process import CommitError, WriterProcess

log = logging.getLogger(__name__)

TICK_S = 0.05
#: A batch whose oldest record is older than this at a tick goes to the spool.
SPOOL_AFTER_S = 0.12
#: Records that become lines together at most: about a quarter of a millisecond of work.
_LINES_AT_ONCE = 16
MAX_PENDING_RECORDS = 20_000
#: How many requests without a valid key are recorded: at once, and in each second. Otherwise callers without a key
#: could fill the buffer, the spool or the database.
UNAUTHENTICATED_AT_ONCE = 100.0
UNAUTHENTICATED_PER_S = 0.1
CLOSE_TIMEOUT_S = 10.0
_MAX_BATCH = 2000
_SPOOL_BATCH = 500
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_END_TIMEOUT_S = 3.0
#: Spooled records that can still be read from memory, the newest.
_RECENT_RECORDS = 1000
#: Errors of a record that fits no table, while it is turned into rows.
_UNFIT = (KeyError, TypeError, ValueError, AttributeError)


class Writer:
    """Records of finished requests on their way to the database. One a process; used from the event loop's thread only.

    `recorded` counts committed records, `retries` failed commits. `away`: the last commit failed; `fault`: what is wrong
    with the SQLite file, if that is the reason. Closing it closes `process`.
    """

    def __init__(
        self,
        process: WriterProcess,
        counts: Counts,
        spool: Spool,
        file: SqliteFile | None = None,
        *,
        keep_prompts: bool = False,
    ) -> None:
        self._process = process
        self.counts = counts
        self._slots = counts.slots
        self._spool = spool
        self._file = file
        self._keep_prompts = keep_prompts
        self.recorded = 0
        self.retries = 0
        self.fault: str | None = None
        self._trouble: str | None = None  # why the last commit failed
        self._records: list[RequestRecord] = []  # not yet lines
        self._buffer: list[bytes] = []
        self._committing: list[bytes] = []  # before the spool, or the spool's beginning
        self._spooled = False  # whether the batch is in the spool
        self._taken_at = time.monotonic()  # when the buffer was empty last
        self._oldest_at = self._taken_at  # no record of the batch is older
        self._recent: deque[bytes] = deque(maxlen=_RECENT_RECORDS)  # the newest in the spool
        # Requests without a valid key that may be recorded now.
        self._unauthenticated = UNAUTHENTICATED_AT_ONCE
        self._unauthenticated_at = time.monotonic()
        self._refused = 0  # rows that no database accepts
        self._work = asyncio.Event()
        self._changed = asyncio.Condition()
        self._ending = asyncio.Event()
        self._ticker = asyncio.create_task(self._tick_always(), name="store-intake")
        self._committer = asyncio.create_task(self._commit_all(), name="store-writer")

    # --- the hot path -------------------------------------------------------------------------------
    def arrived(self) -> None:
        """Count a request that reached the router, so that a kill does not hide it."""
        self._slots[1] += 1

    def forget(self) -> None:
        """Count one request less: it has ended, and leaves no record."""
        self._slots[1] -= 1

    def put(self, record: RequestRecord) -> None:
        """Add a finished request's record, which the caller must not change afterwards. Of requests without a valid key only
        a few are kept."""
        slots = self._slots
        if record.outcome is Outcome.REJECTED_AUTH and not self._keeps_unauthenticated():
            self.forget()  # the metrics count it
            return
        slots[2] += 1
        records = self._records
        if len(self._buffer) + len(records) >= MAX_PENDING_RECORDS:
            slots[3] += 1
            return
        records.append(record)
        if len(records) >= _LINES_AT_ONCE:
            self._make_lines()

    def _make_lines(self) -> None:
        """Append the records to the buffer."""
        for record in self._records:
            line = record_line(record, keep_prompts=self._keep_prompts)
            if line is None:
                log.error("a record cannot become a row")
                self._refuse(1)
            else:
                self._buffer.append(line)
        self._records.clear()

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
    def pending(self) -> int:
        """Records added and not yet committed."""
        return self.counts.finished - self.counts.dropped - self.recorded

    @property
    def spooled(self) -> tuple[int, int]:
        """Records in the spool, and its bytes."""
        return self._spool.rows, self._spool.bytes

    @property
    def full(self) -> bool:
        """Whether no more records can be kept: the spool or the buffer is full."""
        return len(self._buffer) >= MAX_PENDING_RECORDS or (self.pending > 0 and self._spool.full)

    @property
    def away(self) -> bool:
        """Whether nothing can be committed now: the last commit failed, or the writer process has died."""
        return self._trouble is not None or self._process.down

    @property
    def restarts(self) -> int:
        """How often the writer process was started again."""
        return self._process.restarts

    def find(self, request_id: str) -> Entry | None:
        """The rows of a record that is not yet committed and still in memory."""
        self._make_lines()
        for lines in (self._buffer, self._committing, list(self._recent)):
            line = find_line(request_id, lines)
            if line is not None:
                return from_line(line)
        return None

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are committed. False if the database takes too long, or, at once, if it is away."""
        target = self.counts.finished - self.counts.dropped + self._refused

        def reached() -> bool:
            return self.recorded + self._refused >= target

        if not reached():
            self._work.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s), self._changed:
                    await self._changed.wait_for(lambda: self.away or reached())
        return reached()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Write what is left and end; returns the number of records that were not committed in time. The next process
        writes those in the spool."""
        self._work.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                # Nothing is lost by ending while the database is away and everything is in the spool.
                await self._changed.wait_for(
                    lambda: not self.pending or (self.away and self.pending == self._spool.rows)
                )
        self._ending.set()
        await self._process.aclose(_END_TIMEOUT_S)  # it still writes what it has received
        for task in (self._ticker, self._committer):
            task.cancel()
        await asyncio.wait({self._ticker, self._committer})
        self._make_lines()
        self._to_spool()
        left, spooled = self.pending, self._spool.rows
        if spooled:
            log.warning("%d records wait on disk for the next start", spooled)
        if left > spooled:
            log.error(
                "%d records could not be written: the database did not accept them in time", left - spooled
            )
        self._spool.close()
        return left

    # --- the tick -----------------------------------------------------------------------------------
    async def _tick_always(self) -> None:
        hand_over = False
        while True:
            await asyncio.sleep(TICK_S)
            with surviving("store-intake"):
                self._tick(hand_over)
                await self._notify()
            hand_over = not hand_over

    def _tick(self, hand_over: bool) -> None:
        if self._file is not None:
            self._file.check()
        if hand_over or self._spool.rows:
            self._make_lines()
        now = time.monotonic()
        if self._spool.rows:
            self._to_spool()
        elif self._committing and now - self._oldest_at > SPOOL_AFTER_S:
            self._batch_to_spool()
        if self._buffer:
            if hand_over:
                self._work.set()
        elif not self._records:
            self._taken_at = now

    def _batch_to_spool(self) -> bool:
        """Write the batch that is being committed to the spool; whether it is there."""
        if self._spool.full:
            return False
        if self._committing and not self._spooled:
            if not self._spool.append(list(map(checked, self._committing))):
                return False
            self._spooled = True
            self._recent.extend(self._committing)
        return True

    def _to_spool(self) -> None:
        """Write the batch that is being committed to the spool, and the buffer after it. What the spool does not take stays
        in memory."""
        if not self._batch_to_spool():
            return
        for _ in range(_MAX_BATCH // _SPOOL_BATCH):
            part = self._buffer[:_SPOOL_BATCH]
            if not part or not self._spool.append(list(map(checked, part))):
                return
            self._recent.extend(part)
            del self._buffer[:_SPOOL_BATCH]

    # --- the committer ------------------------------------------------------------------------------
    async def _commit_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ending.is_set():
            if not self._committing:
                await self._take()
                continue
            try:
                written = await self._process.commit(self._run, self._committing)
            except CommitError as error:
                if error.away:
                    self.retries += 1
                    before, self._trouble, self.fault = self._trouble, error.fault or str(error), error.fault
                    if self._trouble != before:
                        log.warning("the store accepts no records: %s; they wait", self._trouble)
                    await self._notify()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._ending.wait()
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                failed("store-writer", error)
                refused = len(self._committing)
            else:
                refused = written.refused
                if self._trouble is not None:
                    log.warning("the store accepts records again; %d wait", self.pending)
                self._trouble = self.fault = None
                pause_s = _FIRST_PAUSE_S
            self._advance(refused)
            await self._notify()

    @property
    def _run(self) -> Run:
        counts = self.counts
        return Run(counts.run_id, counts.arrived, counts.finished, counts.dropped)

    async def _take(self) -> None:
        """Take the next batch: from the spool, else from the buffer when it is handed over."""
        if self._spool.rows:
            self._committing, self._spooled = self._spool.read(_SPOOL_BATCH), True
            self._refuse(self._spool.take_lost())
            return
        await self._work.wait()
        self._work.clear()
        self._make_lines()
        if not self._spool.rows:
            self._oldest_at, self._taken_at = self._taken_at, time.monotonic()
            self._spooled = False
            self._committing, self._buffer = self._buffer[:_MAX_BATCH], self._buffer[_MAX_BATCH:]

    def _advance(self, refused: int) -> None:
        """The batch is done; no database accepts `refused` of its rows."""
        if refused:
            log.error("%d rows were refused by the database", refused)
            self._refuse(refused)
        done, self._committing = len(self._committing), []
        self.recorded += done - refused
        if self._spooled:
            self._spool.remove(done)
            self._refuse(self._spool.take_lost())
            if not self._spool.rows:
                self._recent.clear()

    def _refuse(self, count: int) -> None:
        self._refused += count
        self._slots[3] += count

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def record_line(record: RequestRecord, *, keep_prompts: bool) -> bytes | None:
    """The line; None if the record has no valid row. Values that no line takes are corrected, and an explanation that cannot
    be encoded is left out."""
    try:
        record.complete()
        try:
            blob = explanations.encode(record)
        except Exception as error:  # noqa: BLE001 (a policy's reasons must not cost a row)
            failed("explanation", error)
            blob = None
        request = request_row(record)
        attempts = [attempt_row(record, attempt) for attempt in record.attempt_states]
        prompt = clean_prompt(record.prompt) if keep_prompts else None
        try:
            return to_line(request, attempts, blob, prompt)
        except TypeError:  # a number of more than 64 bits, half a surrogate pair
            return to_line(corrected_row(request), list(map(corrected_row, attempts)), blob, None)
    except _UNFIT:
        return None
