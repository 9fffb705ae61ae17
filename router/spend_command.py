"""`headway spend`: shows the spending by day, key, policy and model, with totals."""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from benchmarks.terminal import table_console
from router.store.database import StoreError, opened
from router.store.queries import Store
from router.store.spend_report import (
    AMOUNTS,
    DIMENSIONS,
    BadReport,
    SpendReport,
    day,
    dimensions,
    spend_report,
)
from router.store_arguments import add_store_arguments, store_of

ERRORS = (BadReport, StoreError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store_arguments(parser)
    parser.add_argument(
        "--by", default="day,key", metavar="A,B", help=f"any of {', '.join(DIMENSIONS)} (default: day,key)"
    )
    parser.add_argument(
        "--since", metavar="DAY", help="first day (UTC): 2026-11-22, today, or 7d for the last seven days"
    )
    parser.add_argument("--until", metavar="DAY", help="last day (UTC)")
    parser.add_argument("--key", action="append", metavar="NAME", help="only this key (may be repeated)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="machine-readable output")
    form.add_argument("--csv", action="store_true", help="comma-separated values, without totals")


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code. Raises ConfigError for a bad fleet file, BadReport, StoreError."""
    now = time.time()
    by = dimensions(args.by)
    since, until = (None if text is None else day(text, now) for text in (args.since, args.until))
    report = asyncio.run(_report(store_of(args), by, since, until, args.key))
    if args.json:
        print(json.dumps(asdict(report), indent=2))
    elif args.csv:
        _write_csv(report)
    else:
        table_console().print(_table(report))
    return 0


async def _report(
    url: str, by: Sequence[str], since: str | None, until: str | None, keys: Sequence[str] | None
) -> SpendReport:
    async with opened(url) as engine:
        return await spend_report(Store(engine), by, since, until, keys)


def _write_csv(report: SpendReport) -> None:
    columns = (*report.by, *AMOUNTS)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in report.rows)


def _table(report: SpendReport) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=True)
    for position, name in enumerate(report.by):
        table.add_column(name, "total" if position == 0 else "", overflow="fold")
    for name in AMOUNTS:
        table.add_column(name.replace("_", " "), _amount(name, report.total[name]), justify="right")
    for row in report.rows:
        table.add_row(*(row[name] or "(none)" for name in report.by), *(_amount(n, row[n]) for n in AMOUNTS))
    return table


def _amount(name: str, value: float) -> str:
    return f"{value:.6f}" if name == "cost_usd" else f"{value:.0f}"
