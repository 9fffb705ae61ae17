"""A run's totals of spending, in memory: what the rows that it wrote add up to, by day, key, policy and model.

A run writes its totals, not additions, so writing them twice does no harm. They are written in one transaction with the
rows that they count (table `spend`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from router.store.entries import REQUEST_COLUMNS, Entry

_DAY_S = 86_400.0
_EPOCH = date(1970, 1, 1).toordinal()
_DAYS_KEPT = 2
_INT64_MAX = 2**63 - 1

Key = tuple[str, str, str, str]  # day, key, policy, model

_AT = {name: at for at, name in enumerate(REQUEST_COLUMNS)}
_RECEIVED_AT, _KEY, _POLICY, _MODEL = (_AT[n] for n in ("received_at", "key_name", "policy", "model"))
_PROMPT, _OUTPUT, _COST = (_AT[name] for name in ("prompt_tokens", "output_tokens", "cost_usd"))


class Amounts(NamedTuple):
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
            sums[1] += row[_PROMPT] or 0
            sums[2] += row[_OUTPUT] or 0
            cost_usd = row[_COST]
            if cost_usd is not None and math.isfinite(cost_usd):
                sums[3] += cost_usd
        return {
            key: Amounts(requests, min(prompt, _INT64_MAX), min(output, _INT64_MAX), cost_usd)
            for key, (requests, prompt, output, cost_usd) in changed.items()
        }

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
    """A day (UTC) by its number since the epoch. Raises OverflowError or ValueError outside of the years 1 to 9999."""
    return date.fromordinal(_EPOCH + number).isoformat()


def today(now: float) -> str:
    """The day (UTC) of a time in seconds since the epoch."""
    return _day(int(now // _DAY_S))
