"""Types of the fixtures that make records, and how the gateway gives a record to the store."""

from __future__ import annotations

from collections.abc import Callable

from router.core.types import Decision
from router.store.queries import Store
from router.store.records import RequestRecord

MakeRecord = Callable[..., RequestRecord]
MakeDecision = Callable[..., Decision]


def put(store: Store, record: RequestRecord) -> None:
    """A request arrives and has ended."""
    store.writer.arrived()
    store.writer.put(record)
