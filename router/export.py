"""`headway export`: writes recorded rows as Parquet or CSV, ordered by id, for a notebook or a data warehouse.

Columns have the types of the tables. An unknown value is null: in CSV an empty field, while an empty text is `""` (as in
PostgreSQL's COPY). The file gets its name when it is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa
from rich.progress import TimeRemainingColumn

from benchmarks.terminal import progress_bar
from benchmarks.workloads.format import written_whole
from router.store import tables
from router.store.async_engine import AsyncEngine
from router.store.database import StoreError, opened
from router.store.totals import today
from router.store_arguments import add_store_arguments, store_of

Rows = list[tuple[Any, ...]]
#: What can be exported.
TABLES = {table.name: table for table in (tables.requests, tables.attempts, tables.feedback, tables.spend)}
#: Rows of one query, and of one row group in Parquet.
BATCH_ROWS = 10_000
ERRORS = (StoreError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store_arguments(parser, "--url")
    parser.add_argument(
        "--table", choices=TABLES, default="requests", help="what to export (default: requests)"
    )
    parser.add_argument("--format", choices=("parquet", "csv"), required=True)
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write; - for standard output")
    parser.add_argument(
        "--since",
        type=_time,
        metavar="TIME",
        help="received at this time or later: 2026-11-22, 2026-11-22T10:30 (UTC)",
    )
    parser.add_argument("--until", type=_time, metavar="TIME", help="received before this time")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME", help="only this policy (may be repeated)"
    )


def run(args: argparse.Namespace) -> int:
    """Export; returns the exit code. Raises ConfigError for a bad fleet file, StoreError."""
    extract = Extract(TABLES[args.table], args.since, args.until, args.policy)
    if None not in (args.since, args.until) and args.since > args.until:
        raise StoreError("--since is after --until")
    url = store_of(args)
    if args.out == "-" and args.format == "parquet" and sys.stdout.isatty():
        raise StoreError("Parquet cannot be written to a terminal: use --out FILE")
    with _output(args.out) as out:
        rows = asyncio.run(_export(url, extract, _FORMATS[args.format], out))
    if args.out != "-":
        print(f"{rows} rows of {args.table} written to {args.out}", file=sys.stderr)
    return 0


def _time(text: str) -> float:
    """An ISO date or time as seconds since the epoch; UTC if it has no offset. No row is older than the epoch."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-11-22 or 2026-11-22T10:30"
        ) from None
    return max(0.0, (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())


@contextlib.contextmanager
def _output(path: str) -> Iterator[BinaryIO]:
    """Standard output, or a file that gets its name at the end. A pipe or a device is written directly."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with written_whole(Path(path)) as part, part.open("wb") as file:
        yield file


async def _export(url: str, extract: Extract, form: type[Parquet | Csv], out: BinaryIO) -> int:
    """Write the rows; returns their number. Raises StoreError if the database does not answer, and writes nothing if it
    cannot be opened."""
    written = 0
    async with opened(url) as engine:
        total = await extract.count(engine) if sys.stderr.isatty() else None
        with (
            contextlib.closing(form(extract.table, out)) as writer,
            progress_bar(TimeRemainingColumn()) as bar,
        ):
            task = bar.add_task(extract.table.name, total=total)
            async for rows in extract.batches(engine):
                writer.write(rows)
                written += len(rows)
                bar.update(task, completed=written)
    return written


# --- rows ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Extract:
    """Selects rows of a table: of requests received from `since` until before `until` (seconds since the epoch; for `spend`:
    days that overlap), and of some policies."""

    table: sa.Table
    since: float | None = None
    until: float | None = None
    policies: Sequence[str] = ()

    async def count(self, engine: AsyncEngine) -> int:
        """The current number of rows."""
        query = self._filtered(sa.select(sa.func.count()).select_from(self.table))
        async with engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def batches(self, engine: AsyncEngine) -> AsyncIterator[Rows]:
        """All rows, with values in the order of the table's columns. Each batch is a query of its own that continues after
        the last key, so a long export keeps no transaction open. Rows that are written meanwhile may be included; no row
        comes twice."""
        key = list(self.table.primary_key.columns)
        at = [list(self.table.columns).index(column) for column in key]
        # Ids have the order of time: these rows are a range of them.
        by_time = self.table in {tables.requests, tables.attempts}
        filtered = self.since is not None or self.until is not None or bool(self.policies)
        # A join of both in order would begin at the oldest request.
        joined = [tables.requests.c.id] if filtered and self.table is tables.attempts else []
        after: tuple[Any, ...] = ()
        while True:
            query = self._filtered(sa.select(self.table)).order_by(*key).limit(BATCH_ROWS)
            if after:
                query = query.where(key[0] > after[0] if len(key) == 1 else sa.tuple_(*key) > after)
                query = query.where(*(each >= after[0] for each in joined))
            elif by_time and self.since is not None:
                query = query.where(*(each >= tables.first_id(self.since) for each in (key[0], *joined)))
            elif self.table is tables.feedback and self.since is not None:
                given = tables.feedback.alias("given").c
                least = sa.func.min(given.id + 0)  # of the bare id it would be searched in the order of ids
                first = sa.select(least).where(given.request_id >= tables.first_id(self.since))
                query = query.where(key[0] >= first.scalar_subquery())
            if by_time and self.until is not None:
                last = tables.first_id(self.until) + "~"  # after all ids of its millisecond
                query = query.where(key[0] < sa.func.coalesce(last, "~"))
            async with engine.connect() as connection:
                found = [tuple(row) for row in await connection.execute(query)]
            if found:
                yield found
                after = tuple(found[-1][i] for i in at)
            if len(found) < BATCH_ROWS:
                return

    def _filtered(self, query: sa.Select[Any]) -> sa.Select[Any]:
        table, requests = self.table, tables.requests
        conditions: list[sa.ColumnElement[bool]] = []
        if table is tables.spend:
            if self.since is not None:
                conditions.append(table.c.day >= today(self.since))
            if self.until is not None:
                conditions.append(table.c.day <= today(math.nextafter(self.until, -math.inf)))
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


# --- formats ------------------------------------------------------------------------------------------
class Parquet:
    """Columns with the tables' types, compressed. Needs pyarrow (the extra `export`)."""

    def __init__(self, table: sa.Table, out: BinaryIO) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet

        self._pa = pa
        types = {
            sa.BigInteger: pa.int64(),
            sa.Integer: pa.int64(),
            sa.Double: pa.float64(),
            sa.Boolean: pa.bool_(),
        }
        self._schema = pa.schema(
            [
                pa.field(column.name, types.get(type(column.type), pa.string()), bool(column.nullable))
                for column in table.columns
            ]
        )
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self.close = self._writer.close

    def write(self, rows: Rows) -> None:
        """Write rows as a row group."""
        columns = zip(*rows, strict=True)
        arrays = [self._array(values, field) for values, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def _array(self, values: Sequence[Any], field: Any) -> Any:
        try:
            return self._pa.array(values, field.type)
        except (TypeError, ValueError, OverflowError):  # SQLite holds any type in any column
            raise StoreError(
                f"the column {field.name} has a value of another type: is the database damaged?"
            ) from None


class Csv:
    """Comma-separated values with a header line."""

    def __init__(self, table: sa.Table, out: BinaryIO) -> None:
        self._out = out
        self.write([tuple(column.name for column in table.columns)])

    def write(self, rows: Rows) -> None:
        """Write rows."""
        self._out.write("".join(",".join(map(_field, row)) + "\n" for row in rows).encode())

    def close(self) -> None:
        """Nothing to write."""


#: A spreadsheet reads a text with such a beginning as a formula, and clients choose some of the texts.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: A text that must be quoted.
_QUOTED = re.compile('[,"\r\n]|^$')


def _field(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = f"'{value}" if value.startswith(_FORMULA) else value
    if _QUOTED.search(text) is None:
        return text
    return '"' + text.replace('"', '""') + '"'


_FORMATS: dict[str, type[Parquet | Csv]] = {"parquet": Parquet, "csv": Csv}
