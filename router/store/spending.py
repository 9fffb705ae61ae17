"""Spending by day, key, policy and model: totals of each run, in the table `spend`.

A run writes its totals, not additions, so writing them twice does no harm. They are written in one transaction with the
rows that they count: the sum over `spend` is the sum over all rows that were ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select

from router.store import tables
from router.store.state import TOTAL
from router.store.totals import Amounts

#: The dimensions of a report: name and column.
DIMENSIONS = {"day": "day", "key": "key_name", "policy": "policy", "model": "model"}


def spent_query(day: str) -> Select[Any]:
    """USD by key and run: `total_usd` of all days, `day_usd` of one."""
    columns = tables.spend.c
    return select(
        columns.key_name,
        columns.run_id,
        func.sum(columns.cost_usd).label("total_usd"),
        func.sum(columns.cost_usd).filter(columns.day == day).label("day_usd"),
    ).group_by(columns.key_name, columns.run_id)


def spent(rows: Iterable[Mapping[str, Any]], day: str) -> dict[tuple[str, str], dict[str, float]]:
    """The rows of `spent_query` as USD by (key, period) and run."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        for period, usd in ((TOTAL, row["total_usd"]), (day, row["day_usd"])):
            if usd is not None:
                found.setdefault((row["key_name"], period), {})[row["run_id"]] = float(usd)
    return found


def report_query(
    by: Sequence[str], since: str | None, until: str | None, keys: Sequence[str] | None
) -> Select[Any]:
    """Sums of requests, tokens and cost by any of `DIMENSIONS`, in their order. Days are `2026-11-22`, both included."""
    columns = tables.spend.c
    groups = {name: columns[DIMENSIONS[name]] for name in by}
    named = [column.label(name) for name, column in groups.items()]
    sums = [func.coalesce(func.sum(columns[name]), 0).label(name) for name in Amounts._fields]
    query = select(*named, *sums).group_by(*groups.values()).order_by(*groups.values())
    if since is not None:
        query = query.where(columns.day >= since)
    if until is not None:
        query = query.where(columns.day <= until)
    if keys is not None:
        query = query.where(columns.key_name.in_(keys))
    return query
