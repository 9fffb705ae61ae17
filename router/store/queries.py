"""The store as the gateway and the commands use it: open, put, read, close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Select, delete, exists, func, insert, select

from router.background import Tasks
from router.core.types import ANSWERED, PromptFeatures
from router.store import explanations, runs, tables
from router.store.async_engine import AsyncEngine
from router.store.database import (
    StoreError,
    answering,
    connect,
    connected,
    create_engine,
    dispose,
    driver_errors,
    is_bad_value,
    parse_url,
    public_url,
    retrying,
    sqlite_path,
)
from router.store.entries import ATTEMPT_COLUMNS, REQUEST_COLUMNS, Entry
from router.store.explanations import Explanation
from router.store.keys import KeyTable
from router.store.retention import Retention
from router.store.runs import Lost
from router.store.spool import Spool
from router.store.sqlite_file import SqliteFile
from router.store.state import TOTAL
from router.store.takeover import take_over
from router.store.totals import today
from router.store.writer import CLOSE_TIMEOUT_S, Writer
from router.store.writer_process import WriterProcess, writer_settings

log = logging.getLogger(__name__)

#: Disk space for records while the database is away.
SPOOL_MB = 1024.0
#: How long a start waits for the writer process.
WRITER_START_S = 30.0
#: How long a start waits for the rows of killed runs to be written.
TAKE_UP_S = 5.0
#: The longest wait of a read for records that finished before it.
READ_FLUSH_S = 2.0
#: With this many records on disk a read does not wait for them.
FAR_BEHIND_RECORDS = 2000
MAX_LIMIT = 1000
#: How long a page of requests is searched for, a number of rows at a time.
SEARCH_S = 5.0
_SEARCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts for metrics. `lost` is over all runs in the store, the rest over this one. Of the `pending` records `spooled`
    wait on disk. `file_losses`: how often the SQLite file was found moved, removed or replaced;
    `writer_restarts`: how often the writer process was started again."""

    finished: int
    recorded: int
    dropped: int
    pending: int
    lost: Lost
    retries: int = 0
    spooled: int = 0
    spooled_bytes: int = 0
    file_losses: int = 0
    writer_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Requests, newest first. `next_cursor` is the cursor of the next page, None at the end."""

    requests: list[dict[str, Any]]
    next_cursor: str | None


class Store:
    """The records of one database. Reads see all records that were put before, including those not written yet.

    `Store.open` opens it to write and read; that of an engine only reads. Reads raise StoreError if the database does not answer.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._errors = driver_errors(engine)
        self._writer: Writer | None = None
        self._keyed: Path | None = None
        self._file: SqliteFile | None = None
        self._lost = Lost()
        self._temporary: TemporaryDirectory[str] | None = None
        self._taking_up: list[asyncio.Task[None]] = []
        self._tasks = Tasks()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        retain_days: float | None = None,
        max_mb: float | None = None,
        keep_prompts: bool = False,
        spool_directory: Path | None = None,
        spool_mb: float = SPOOL_MB,
        wait_s: float = 0.0,
    ) -> Store:
        """Open for recording: migrate the tables, take over from killed runs, begin a run.

        Counter files and the spool (at most `spool_mb`) are in `spool_directory`. Without one they are beside a SQLite
        file, or, for a server, in the working directory. Waits up to `wait_s` seconds for a server to answer. Raises StoreError:
        unreachable, not writable, not our database, no counter file possible.
        """
        parsed = parse_url(url)
        temporary = None
        if parsed.get_backend_name() == "sqlite" and sqlite_path(parsed) is None:
            # Two processes cannot share a database in memory.
            temporary = TemporaryDirectory(prefix="headway-")
            parsed = parsed.set(database=str(Path(temporary.name) / "headway.db"))
        engine = create_engine(parsed)
        store = cls(engine)
        store._temporary = temporary
        try:
            await connect(engine, create=True, wait_s=wait_s)
            path = sqlite_path(parsed)
            store._file = None if path is None else SqliteFile(path, engine)
            prefix = runs.file_prefix(parsed, spool_directory)
            store._keyed = runs.keyed_path(prefix)
            process = await store._begin_run(prefix, spool_mb, keep_prompts, wait_s)
            await store._take_up(process, prefix)
            if spool_directory is not None:  # it may have been missing, or another, at the last start
                await store._take_up(process, runs.file_prefix(parsed, None))
        except BaseException:
            await store.close()
            raise
        retention = Retention(engine, retain_days=retain_days, max_mb=max_mb)
        store._tasks.start(retention.run(), "retention")
        return store

    async def _begin_run(
        self, prefix: Path, spool_mb: float, keep_prompts: bool, wait_s: float
    ) -> WriterProcess:
        now = time.time()
        counts = runs.create_counts(prefix, runs.new_run_id(now))

        async def begin(engine: AsyncEngine) -> None:
            await runs.begin(engine, counts.run_id, now)
            self._lost = await runs.lost_so_far(engine)

        try:
            await retrying(self._engine, begin, wait_s)
        except BaseException:
            counts.close(remove=True)
            raise
        spool = Spool(counts.path, spool_mb * 1024 * 1024)
        process = WriterProcess(writer_settings(self._engine, self._file, counts.path))
        self._writer = Writer(process, counts, spool, self._file, keep_prompts=keep_prompts)
        try:
            async with asyncio.timeout(WRITER_START_S):
                await process.started()
        except (OSError, TimeoutError) as error:
            how = str(error) or "it does not answer"
            raise StoreError(f"the process that writes records does not start: {how}") from None
        return process

    async def _take_up(self, process: WriterProcess, prefix: Path) -> None:
        """Take over from killed runs. After `TAKE_UP_S` this continues in the background."""

        async def take_up() -> None:
            await take_over(self._engine, process, prefix)
            with contextlib.suppress(*self._errors):
                self._lost = await runs.lost_so_far(self._engine)

        task = self._tasks.start(take_up(), "takeover")
        self._taking_up.append(task)
        await asyncio.wait({task}, timeout=TAKE_UP_S)

    async def taken_up(self) -> bool:
        """Wait for the takeover from killed runs; whether it was still running."""
        late = [task for task in self._taking_up if not task.done()]
        self._taking_up.clear()
        if late:
            await asyncio.wait(late)
        return bool(late)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is left (at most `timeout_s` seconds), mark the run's end, close the database. Records that were not
        committed stay in the spool for the next start."""
        await self._tasks.stop()
        writer = self._writer
        if writer is not None:
            await writer.close(timeout_s)
            accounted = False
            if not writer.spooled[0]:
                with contextlib.suppress(*self._errors):
                    async with asyncio.timeout(timeout_s), self._engine.begin() as connection:
                        counts = writer.counts
                        await runs.end(connection, counts.run_id, counts.slots, writer.recorded, time.time())
                    accounted = True
            # Otherwise the file stays, and the next start counts the lost rows.
            writer.counts.close(remove=accounted)
            self._writer = None
        await dispose(self._engine)
        if self._temporary is not None:
            self._temporary.cleanup()

    # --- writing ------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The store's URL without credentials."""
        return public_url(self._engine.url)

    @property
    def writer(self) -> Writer:
        """The writer: `writer.arrived()` when a request arrives, `writer.put(record)` when it has ended."""
        if self._writer is None:
            raise StoreError(f"the store {self.name} is open for reading only")
        return self._writer

    @property
    def keys(self) -> KeyTable:
        """Clients' keys that were made at run time, over the store's own connections."""
        return KeyTable(self._engine, self._keyed)

    @property
    def run_id(self) -> str:
        """The id of this run, which marks its rows of spending."""
        return self.writer.counts.run_id

    @property
    def full(self) -> bool:
        """Whether no more finished requests can be kept: the database is away and the spool is full."""
        return self._writer is not None and self._writer.full

    @property
    def fault(self) -> str | None:
        """What is wrong with the SQLite file, if someone must act; None if the database is well or locked, or a server is
        away."""
        lost = None if self._file is None else self._file.check()
        return lost or (None if self._writer is None else self._writer.fault)

    @property
    def away(self) -> bool:
        """Whether the last commit of records failed."""
        return self._writer is not None and self._writer.away

    def counts(self) -> RecordCounts:
        """Counts for metrics."""
        writer = self._writer
        if writer is None:
            return RecordCounts(0, 0, 0, 0, self._lost)
        spooled, spooled_bytes = writer.spooled
        return RecordCounts(
            writer.counts.finished,
            writer.recorded,
            writer.counts.dropped,
            writer.pending,
            self._lost,
            writer.retries,
            spooled,
            spooled_bytes,
            0 if self._file is None else self._file.losses,
            writer.restarts,
        )

    async def add_feedback(
        self,
        request_id: str,
        quality: float,
        key_name: str | None,
        by: str | None = None,
        most: float = inf,
    ) -> int:
        """Add feedback about an answer (quality in [0, 1]). Returns its place among the feedback about this answer: 1 for
        the first, above `most` if it was not kept, 0 if the key has no such request. `by` is the key that gives it (None:
        the same key). A repetition of that key's newest rating is not kept again, and is never the first: its caller may not
        know that the rating was kept."""
        if await self.request(request_id, key_name) is None:
            return 0
        table = tables.feedback
        values = {
            "request_id": request_id,
            "received_at": time.time(),
            "key_name": key_name if by is None else by,
            "quality": quality,
        }
        with answering(self._engine):
            async with self._engine.begin() as connection:
                added = await connection.execute(insert(table).values(values))
                assert added.inserted_primary_key is not None  # noqa: S101 (of one row it is known)
                (own,) = added.inserted_primary_key
                before = select(table.c.key_name, table.c.quality).where(
                    table.c.request_id == request_id, table.c.id < own
                )
                earlier = (await connection.execute(before.order_by(table.c.id))).all()
                own_ratings = [rating for name, rating in earlier if name == values["key_name"]]
                repeated = own_ratings[-1:] == [quality]
                if repeated or len(earlier) >= most:
                    await connection.execute(delete(table).where(table.c.id == own))
        return max(2, len(earlier)) if repeated else 1 + len(earlier)

    # --- reading ------------------------------------------------------------------------------------
    async def feedback_to_learn(
        self, request_id: str | None = None, limit: int = 1000
    ) -> list[tuple[str, PromptFeatures, float]]:
        """(model, features of the prompt, quality) of the newest feedback, oldest first, for one request or all.

        Only the first feedback of each answer counts. Prompts without features are left out.
        """
        given, about = tables.feedback.c, tables.explanations.c
        earlier = tables.feedback.alias("earlier")
        first = ~exists().where(earlier.c.request_id == given.request_id, earlier.c.id < given.id)
        query = (
            select(tables.requests.c.model, about.blob, given.quality)
            .join(tables.requests, tables.requests.c.id == given.request_id)
            .join(tables.explanations, about.request_id == given.request_id)
            .where(first, tables.requests.c.outcome.in_(ANSWERED))
            .order_by(given.id.desc())
            .limit(limit)
        )
        if request_id is not None:
            await self.flush()
            query = query.where(given.request_id == request_id)
        found = []
        for row in reversed(await self.rows(query)):
            try:
                features = explanations.decode(row["blob"])["features"]
            except ValueError:  # damaged, or of a version that is not supported
                continue
            if features is not None and row["model"] is not None:
                found.append((row["model"], features, row["quality"]))
        return found

    async def request(
        self, request_id: str, key_name: str | None = None, *, any_key: bool = False
    ) -> dict[str, Any] | None:
        """One request by id; None if there is none, or if it is another key's. `any_key` is for operators. A caller without
        a key (`key_name` None: no keys are configured) sees requests without one."""
        entry = await self._unwritten(request_id)
        if entry is not None:
            rows = [dict(zip(REQUEST_COLUMNS, entry.request, strict=True))]
        else:
            rows = await self.rows(select(tables.requests).where(tables.requests.c.id == request_id))
        if not rows and self._writer is not None and self._writer.spooled[0]:
            # This one may be among them.
            raise StoreError(f"the store {self.name} is behind: records wait on disk")
        return next((row for row in rows if any_key or row["key_name"] == key_name), None)

    async def attempts(self, request_id: str) -> list[dict[str, Any]]:
        """The attempts of a request, in order."""
        entry = await self._unwritten(request_id)
        if entry is not None:
            return [dict(zip(ATTEMPT_COLUMNS, row, strict=True)) for row in entry.attempts]
        table = tables.attempts
        query = select(table).where(table.c.request_id == request_id).order_by(table.c.number)
        return await self.rows(query)

    async def explanation(self, request_id: str) -> Explanation | None:
        """The data of the request's decisions; None if nothing was decided, or if it cannot be read."""
        entry = await self._unwritten(request_id)
        if entry is not None:
            blob = None if entry.explanation is None else entry.explanation[1]
        else:
            table = tables.explanations
            rows = await self.rows(select(table.c.blob).where(table.c.request_id == request_id))
            blob = rows[0]["blob"] if rows else None
        if blob is None:
            return None
        try:
            return explanations.decode(blob)
        except ValueError:  # damaged, or of a newer version; the error may quote it
            log.warning("the explanation of %s cannot be read", request_id)
            return None

    async def requests(
        self,
        *,
        since: float | None = None,
        outcome: str | None = None,
        policy: str | None = None,
        model: str | None = None,
        instance: str | None = None,
        key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Requests that match all given filters, newest first. `since` is in seconds since the epoch, `limit` at most
        `MAX_LIMIT`, `cursor` the `next_cursor` of the page before. A page is not full if the search for so many takes longer
        than `SEARCH_S`."""
        columns = tables.requests.c
        searched, query = select(columns.id), select(tables.requests)
        if since is not None:
            searched = searched.where(columns.id >= tables.first_id(since))
            query = query.where(columns.received_at >= since, columns.id >= tables.first_id(since))
        filters = [
            column == value
            for column, value in (
                (columns.outcome, outcome),
                (columns.policy, policy),
                (columns.model, model),
                (columns.instance, instance),
                (columns.key_name, key),
            )
            if value is not None
        ]
        query = query.where(*filters).order_by(columns.id.desc())
        searched = searched.order_by(columns.id.desc()).offset(_SEARCH_ROWS - 1).limit(1)
        limit = max(1, min(limit, MAX_LIMIT))
        await self.flush()
        give_up_at = time.monotonic() + SEARCH_S
        rows: list[dict[str, Any]] = []
        while True:
            newer = [] if cursor is None else [columns.id < cursor]
            # One statement could read the whole table for a filter that few rows pass.
            end = [row["id"] for row in await self.rows(searched.where(*newer))] if filters else []
            part = query.where(*newer, *(columns.id >= each for each in end))
            rows += await self.rows(part.limit(limit + 1 - len(rows)))
            if len(rows) > limit:
                del rows[limit:]
                return Page(rows, rows[-1]["id"])
            if not end:
                return Page(rows, None)
            (cursor,) = end
            if time.monotonic() > give_up_at:
                return Page(rows, cursor)

    async def feedback(self, request_id: str) -> list[dict[str, Any]]:
        """The feedback about an answer, oldest first. Empty while the record itself waits for a database that is away."""
        table = tables.feedback
        query = select(table).where(table.c.request_id == request_id).order_by(table.c.id)
        try:
            return await self.rows(query)
        except StoreError:
            if await self._unwritten(request_id) is None:
                raise
            return []

    async def spent(self, *, by_run: bool) -> dict[tuple[str, str], dict[str, float]]:
        """USD that other runs spent by (key, period) and run, for `State.load_spent`. Periods are today (UTC, `2026-11-22`)
        and `total`, the sum over all days. Requests without a key are under "". Without `by_run` there is one amount for all
        other runs, under ""."""
        columns, day = tables.spend.c, today(time.time())
        usd = func.sum(columns.cost_usd)
        groups = [columns.key_name, columns.run_id] if by_run else [columns.key_name]
        query = (
            select(*groups, usd.label(TOTAL), usd.filter(columns.day == day).label(day))
            .where(columns.run_id != self.run_id)
            .group_by(*groups)
        )
        await self.flush()
        spent: dict[tuple[str, str], dict[str, float]] = {}
        for row in await self.rows(query):
            for period in (TOTAL, day):
                if row[period] is not None:
                    run = row.get("run_id", "")
                    spent.setdefault((row["key_name"], period), {})[run] = float(row[period])
        return spent

    # --- how ----------------------------------------------------------------------------------------
    async def flush(self) -> bool:
        if self._writer is None:
            return True
        return self._writer.spooled[0] < FAR_BEHIND_RECORDS and await self._writer.flush(READ_FLUSH_S)

    async def _unwritten(self, request_id: str) -> Entry | None:
        """The rows of a record if it is still unwritten after the writer was flushed."""
        writer = self._writer
        if writer is None or (not writer.spooled[0] and await self.flush()):
            return None
        return writer.find(request_id)

    async def rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        async with connected(self._engine) as connection:
            try:
                result = await connection.execute(query)
            except self._errors as error:
                if not is_bad_value(error):
                    raise
                return []  # no row has a value that the database cannot hold, such as a NUL in a text
            names = list(map(str, result.keys()))  # otherwise of SQLAlchemy's own string type
            return [dict(zip(names, row, strict=True)) for row in result]
