"""Reports of spending by day, key, policy and model, for the API and `headway spend`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from router.store.queries import Store
from router.store.spending import DIMENSIONS

#: The sums of a report.
AMOUNTS = ("requests", "prompt_tokens", "output_tokens", "cost_usd")

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "by": list(self.by),
            "since": self.since,
            "until": self.until,
            "rows": list(self.rows),
            "total": dict(self.total),
        }


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
) -> SpendReport:
    """The spending of `keys` (None: all; "" is no key), split by `by`. Raises StoreError."""
    rows = [
        {name: row[name] for name in (*by, *AMOUNTS)}
        for row in await store.spending(by=list(by), since=since, until=until, keys=keys)
    ]
    if not by and rows and not rows[0]["requests"]:
        rows = []  # only the sum over nothing
    total = {name: sum(row[name] for row in rows) for name in AMOUNTS}
    return SpendReport(tuple(by), since, until, rows, total)
