"""Spending by day, key, policy and model: totals of each run, in the table `spend`.

A run writes its totals, not additions, so writing them twice does no harm. They are written in one transaction with the
rows that they count: the sum over `spend` is the sum over all rows that were ever written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from router.store import tables
from router.store.entries import Entry
from router.store.records import REQUEST_COLUMNS
from router.store.state import TOTAL

#: The dimensions of a report: name and column.
DIMENSIONS = {"day": "day", "key": "key_name", "policy": "policy", "model": "model"}
_DAY_S = 86_400.0
_DAYS_KEPT = 2
_INT64_MAX = 2**63 - 1

Key = tuple[str, str, str, str]  # day, key, policy, model

_AT = {name: at for at, name in enumerate(REQUEST_COLUMNS)}
_RECEIVED_AT, _KEY, _POLICY, _MODEL = (_AT[n] for n in ("received_at", "key_name", "policy", "model"))
_PROMPT, _OUTPUT, _COST = (_AT[name] for name in ("prompt_tokens", "output_tokens", "cost_usd"))


@dataclass(frozen=True, slots=True)
class Amounts:
    """Requests, their tokens and their cost."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Totals:
    """The written spending of one run. Days that ended a while ago are dropped."""

    def __init__(self, amounts: Mapping[Key, Amounts] | None = None) -> None:
        self._amounts = dict(amounts or {})
        self._from_s = -math.inf  # requests received before are dropped
        self._newest = ""

    def forgot(self, entries: Iterable[Entry]) -> bool:
        """Whether the totals of such old rows were dropped (the clock went back by days)."""
        return any(entry.request[_RECEIVED_AT] < self._from_s for entry in entries)

    def with_entries(self, entries: Iterable[Entry]) -> dict[Key, Amounts]:
        """The changed totals, once these entries are written."""
        changed: dict[Key, list[Any]] = {}
        for entry in entries:
            row = entry.request
            key = today(row[_RECEIVED_AT]), row[_KEY] or "", row[_POLICY] or "", row[_MODEL] or ""
            sums = changed.get(key)
            if sums is None:
                before = self._amounts.get(key, Amounts())
                sums = [before.requests, before.prompt_tokens, before.output_tokens, before.cost_usd]
                changed[key] = sums
            sums[0] += 1
            sums[1] = min(sums[1] + (row[_PROMPT] or 0), _INT64_MAX)
            sums[2] = min(sums[2] + (row[_OUTPUT] or 0), _INT64_MAX)
            cost_usd = row[_COST]
            if cost_usd is not None and math.isfinite(cost_usd):
                sums[3] += cost_usd
        return {key: Amounts(*sums) for key, sums in changed.items()}

    def adopt(self, changed: Mapping[Key, Amounts]) -> None:
        """These totals were written."""
        self._amounts.update(changed)
        newest = max((key[0] for key in changed), default="")
        if newest > self._newest:
            self._newest = newest
            kept = datetime.fromisoformat(newest).replace(tzinfo=UTC) - timedelta(days=_DAYS_KEPT)
            self._from_s = kept.timestamp()
            oldest = today(self._from_s)
            self._amounts = {key: each for key, each in self._amounts.items() if key[0] >= oldest}


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    """A day (UTC) by its number since the epoch."""
    return datetime.fromtimestamp(number * _DAY_S, UTC).strftime("%Y-%m-%d")


class Upsert:
    """Writes a run's totals."""

    def __init__(self, backend: str) -> None:
        table = tables.spend
        dialect: Any = postgresql if backend == "postgresql" else sqlite
        statement = dialect.insert(table)
        self._statement = statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_={name: statement.excluded[name] for name in Amounts.__slots__},
        )

    async def run(self, connection: AsyncConnection, run_id: str, totals: Mapping[Key, Amounts]) -> None:
        """Write totals of a run."""
        if not totals:
            return
        rows = [
            {
                "day": day,
                "run_id": run_id,
                "key_name": key,
                "policy": policy,
                "model": model,
                "requests": amounts.requests,
                "prompt_tokens": amounts.prompt_tokens,
                "output_tokens": amounts.output_tokens,
                "cost_usd": amounts.cost_usd,
            }
            # Always in the same order, so that no two transactions wait for each other's rows.
            for (day, key, policy, model), amounts in sorted(totals.items())
        ]
        await connection.execute(self._statement, rows)


async def totals_of(connection: AsyncConnection, run_id: str) -> Totals:
    """The totals that a run has written."""
    columns = tables.spend.c
    rows = await connection.execute(select(tables.spend).where(columns.run_id == run_id))
    return Totals(
        {
            (row.day, row.key_name, row.policy, row.model): Amounts(
                row.requests, row.prompt_tokens, row.output_tokens, row.cost_usd
            )
            for row in rows
        }
    )


# --- questions ----------------------------------------------------------------------------------------
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
    """Sums of requests, tokens and cost by any of `DIMENSIONS`, in their order. Days are `2026-11-22`, both included. Raises
    ValueError for an unknown dimension."""
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)} (known: {', '.join(DIMENSIONS)})")
    columns = tables.spend.c
    groups = [columns[DIMENSIONS[name]] for name in dict.fromkeys(by)]
    named = [column.label(name) for column, name in zip(groups, dict.fromkeys(by), strict=True)]
    sums = [func.coalesce(func.sum(columns[name]), 0).label(name) for name in Amounts.__slots__]
    query = select(*named, *sums).group_by(*groups).order_by(*groups)
    if since is not None:
        query = query.where(columns.day >= since)
    if until is not None:
        query = query.where(columns.day <= until)
    if keys is not None:
        query = query.where(columns.key_name.in_(keys))
    return query


def today(now: float) -> str:
    """The day (UTC) of a time in seconds since the epoch."""
    return _day(int(now // _DAY_S))
