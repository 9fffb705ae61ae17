"""Reports of spending by day, key, policy and model, for the API and `headway spend`.

They are sums over the table `spend`, and so over all rows that were ever written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from router.store.queries import Store
from router.store.tables import spend
from router.store.totals import Amounts

#: The dimensions of a report: name and column.
DIMENSIONS = {"day": "day", "key": "key_name", "policy": "policy", "model": "model"}
#: The sums of a report.
AMOUNTS = Amounts._fields

_DAYS = re.compile(r"([0-9]{1,5})d")


class BadReport(ValueError):
    """There is no such report. The message is one clause for the caller."""


@dataclass(frozen=True, slots=True)
class SpendReport:
    """`rows` have the dimensions in `by` and the amounts, `total` the sums of the rows. Days are UTC, `since` and `until`
    included; None: no bound."""

    by: tuple[str, ...]
    since: str | None
    until: str | None
    rows: Sequence[Mapping[str, Any]]
    total: Mapping[str, float]


def dimensions(text: str) -> tuple[str, ...]:
    """`day,key` as a tuple, each once. Raises BadReport for a name that is not in `DIMENSIONS`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in DIMENSIONS:
            raise BadReport(f"unknown dimension {name[:40]!r}; known: {', '.join(DIMENSIONS)}")
    return names


def day(text: str, now: float) -> str:
    """A day (UTC) as in the store, from `2026-11-22`, `today`, or `7d`: the first of the last seven days, today included.

    `now` is in seconds since the epoch. Raises BadReport for anything else.
    """
    today = datetime.fromtimestamp(now, UTC).date()
    if text == "today":
        return today.isoformat()
    last = _DAYS.fullmatch(text)
    try:
        if last is not None:
            return (today - timedelta(days=max(0, int(last[1]) - 1))).isoformat()
        return date.fromisoformat(text).isoformat()
    except (ValueError, OverflowError):
        raise BadReport(f"{text[:40]!r} is not a day: give 2026-11-22, today or 7d") from None


async def spend_report(
    store: Store,
    by: Sequence[str],
    since: str | None = None,
    until: str | None = None,
    keys: Sequence[str] | None = None,
    most: int | None = None,
) -> SpendReport:
    """The spending of `keys` (None: all; "" is no key), split by `by` and ordered by it. `since` and `until` are days (UTC,
    `2026-11-22`). Raises BadReport for a `since` after `until` and for more than `most` rows (None: no limit), StoreError."""
    if since is not None and until is not None and since > until:
        raise BadReport(f"since ({since}) is after until ({until})")
    groups = [spend.c[DIMENSIONS[name]] for name in by]
    named = [column.label(name) for name, column in zip(by, groups, strict=True)]
    sums = [func.coalesce(func.sum(spend.c[name]), 0).label(name) for name in AMOUNTS]
    query = select(*named, *sums).group_by(*groups).order_by(*groups)
    if since is not None:
        query = query.where(spend.c.day >= since)
    if until is not None:
        query = query.where(spend.c.day <= until)
    if keys is not None:
        query = query.where(spend.c.key_name.in_(keys))
    await store.flush()
    rows = await store.rows(query if most is None else query.limit(most + 1))
    if most is not None and len(rows) > most:
        raise BadReport(f"the report has more than {most} rows: give fewer days or dimensions")
    for row in rows:  # PostgreSQL sums into decimals
        row.update({name: int(row[name]) for name in ("requests", "prompt_tokens", "output_tokens")})
        row["cost_usd"] = float(row["cost_usd"])
    if not by and rows and not rows[0]["requests"]:
        rows = []  # only the sum over nothing
    total = {name: sum(row[name] for row in rows) for name in AMOUNTS}
    return SpendReport(tuple(by), since, until, rows, total)
