"""What rows add up to by day, key, policy and model: the additions to a run's spending (table `spend`).

They are written in one transaction with the rows that they count, so each row counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from router.store.entries import REQUEST_COLUMNS, Entry

_DAY_S = 86_400.0
_EPOCH = date(1970, 1, 1).toordinal()
#: No row counts for more tokens, so that no sum leaves 64 bits.
MOST_TOKENS = 1 << 40

Key = tuple[str, str, str, str]  # day, key, policy, model

_counted = itemgetter(
    *map(
        REQUEST_COLUMNS.index,
        ("received_at", "key_name", "policy", "model", "prompt_tokens", "output_tokens", "cost_usd"),
    )
)


class Amounts(NamedTuple):
    """Requests, their tokens and their cost."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


def spending(entries: Iterable[Entry]) -> dict[Key, Amounts]:
    """The sums over these entries. Raises OverflowError or ValueError for a time that has no day."""
    found: dict[tuple[float, str, str, str], list[Any]] = {}
    for entry in entries:
        received_at, key_name, policy, model, prompt, output, cost_usd = _counted(entry.request)
        key = received_at // _DAY_S, key_name or "", policy or "", model or ""
        sums = found.get(key)
        if sums is None:
            sums = found[key] = [0, 0, 0, 0.0]
        sums[0] += 1
        if prompt is not None:
            sums[1] += prompt if prompt < MOST_TOKENS else MOST_TOKENS
        if output is not None:
            sums[2] += output if output < MOST_TOKENS else MOST_TOKENS
        if cost_usd is not None and math.isfinite(cost_usd):
            sums[3] += cost_usd
    return {
        (_day(int(day)), key_name, policy, model): Amounts(*sums)
        for (day, key_name, policy, model), sums in found.items()
    }


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    """A day (UTC) by its number since the epoch. Raises OverflowError or ValueError outside of the years 1 to 9999."""
    return date.fromordinal(_EPOCH + number).isoformat()


def today(now: float) -> str:
    """The day (UTC) of a time in seconds since the epoch."""
    return _day(int(now // _DAY_S))
