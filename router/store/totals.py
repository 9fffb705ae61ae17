"""What rows add up to by day, key, policy and model: the additions to a run's spending (table `spend`).

They are written in one transaction with the rows that they count, so each row counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from router.store.entries import REQUEST_COLUMNS, Entry

_DAY_S = 86_400.0
_EPOCH = date(1970, 1, 1).toordinal()
#: No row counts for more tokens, so that no sum leaves 64 bits.
MOST_TOKENS = 1 << 40

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


def spending(entries: Iterable[Entry]) -> dict[Key, Amounts]:
    """The sums over these entries. Raises OverflowError or ValueError for a time that has no day."""
    found: dict[Key, list[Any]] = {}
    for entry in entries:
        row = entry.request
        key = today(row[_RECEIVED_AT]), row[_KEY] or "", row[_POLICY] or "", row[_MODEL] or ""
        sums = found.setdefault(key, [0, 0, 0, 0.0])
        sums[0] += 1
        sums[1] += min(row[_PROMPT] or 0, MOST_TOKENS)
        sums[2] += min(row[_OUTPUT] or 0, MOST_TOKENS)
        cost_usd = row[_COST]
        if cost_usd is not None and math.isfinite(cost_usd):
            sums[3] += cost_usd
    return {key: Amounts(*sums) for key, sums in found.items()}


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    """A day (UTC) by its number since the epoch. Raises OverflowError or ValueError outside of the years 1 to 9999."""
    return date.fromordinal(_EPOCH + number).isoformat()


def today(now: float) -> str:
    """The day (UTC) of a time in seconds since the epoch."""
    return _day(int(now // _DAY_S))
