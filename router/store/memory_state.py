"""State of one process, without other replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.store.ledger import Ledger
from router.store.state import Bucket, Budget, Claim, Grant, Listener, StateHealth, decide

#: The run of this process in its own ledger. No stored run has this id.
_OWN_RUN = "this process"


class MemoryState:
    """State of one process. Its size is bounded by the number of keys: past days are forgotten."""

    def __init__(self) -> None:
        self._ledger = Ledger(_OWN_RUN)
        self._levels: dict[str, tuple[float, float]] = {}  # level and its time
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._listener: Listener | None = None

    async def start(self, listener: Listener) -> None:
        self._listener = listener

    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        self._ledger.load(spent)

    def _level(self, bucket: Bucket, now: float) -> float:
        known = self._levels.get(bucket.name)
        if known is None:
            return bucket.capacity
        level, at = known
        if now < at:  # the clock was set back: refill from now on
            self._levels[bucket.name] = level, now
            return level
        return min(bucket.capacity, level + (now - at) * bucket.refill_per_s)

    async def take(self, claim: Claim, now: float) -> Grant:
        takes = [(bucket, self._level(bucket, now), amount) for bucket, amount in claim.takes]
        grant = decide(claim, takes, self._ledger.left_usd)
        if grant.given:
            self._ledger.reserve(claim.budgets, grant.reserved_usd)
            for bucket, level, amount in takes:
                self._levels[bucket.name] = (level - amount, now)
        return grant

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        self._levels[bucket.name] = (self._level(bucket, now) + amount, now)

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        self._ledger.settle(budgets, reserved_usd, spent_usd)

    def spent_usd(self, key: str, period: str) -> float:
        return self._ledger.spent_usd((key, period))

    def send_observations(self, message: bytes) -> None:
        pass

    async def change(self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        content = self._documents[document] = edit(self._documents.get(document, {}))
        if self._listener is not None:
            self._listener.document_changed(document, content)

    def wake(self) -> None:
        pass

    @property
    def health(self) -> StateHealth:
        return StateHealth()

    async def aclose(self) -> None:
        self._levels.clear()
