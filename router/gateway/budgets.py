"""What each key has spent today (UTC), against its `budget_usd_per_day`.

A request is refused once the day's budget is spent. What is under way is not reserved, so requests that run
side by side may pass the budget by what they cost together.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from router.core.errors import Refusal
from router.core.types import Outcome
from router.store.records import RequestRecord


class DailySpend:
    """Spend by key since midnight. One a process; it outlives changes of the fleet file."""

    def __init__(self) -> None:
        self._day = 0
        self._spent_usd: dict[str, float] = {}

    def load(self, spent_usd: Mapping[str, float], now: float) -> None:
        """Begin with what the store knows of today. `now` in seconds since the epoch."""
        self._day = _day(now)
        self._spent_usd = dict(spent_usd)

    def check(self, key_name: str, budget_usd: float | None, now: float) -> None:
        """Raise the 429 if the key has spent its budget of today."""
        if budget_usd is None:
            return
        self._turn(now)
        spent_usd = self._spent_usd.get(key_name, 0.0)
        if spent_usd >= budget_usd:
            raise Refusal(
                429,
                "insufficient_quota",
                f"The key has spent its budget of {budget_usd:g} USD for today (UTC).",
                Outcome.REJECTED_BUDGET,
                should_retry=False,
            )

    def charge(self, record: RequestRecord) -> None:
        """Count a finished request."""
        if record.key_name is not None and record.cost_usd:
            self._turn(record.received_at)
            self._spent_usd[record.key_name] = self._spent_usd.get(record.key_name, 0.0) + record.cost_usd

    def _turn(self, now: float) -> None:
        day = _day(now)
        if day > self._day:
            self._day = day
            self._spent_usd.clear()


def _day(now: float) -> int:
    return int(now // 86_400)


def midnight(now: float) -> float:
    """The beginning of the day (UTC) in seconds since the epoch."""
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
