"""Loads what keys spent in earlier runs, so that a restart refills no budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from router.gateway.keys.tenants import Tenants
from router.store.database import StoreError
from router.store.queries import Store
from router.store.state import State

logger = logging.getLogger("headway")

#: USD by (key, period) and run, as the store returns it.
Spent = Mapping[tuple[str, str], Mapping[str, float]]

#: A failed read is repeated after this long.
_RETRY_S = 5.0


async def load_spending(store: Store, state: State, tenants: Tenants) -> None:
    """Load what is recorded into the state. Raises StoreError."""
    spent = await store.spent(by_run=state.health.shared)  # replicas tell each other what each run has spent
    state.load_spent(rolled_up(spent, tenants))


async def load_late_spending(store: Store, state: State, tenants: Callable[[], Tenants]) -> None:
    """Load again when the records that killed runs left on disk are in the store, which may take long."""
    late = await store.taken_up()
    while late:
        try:
            await load_spending(store, state, tenants())
            return
        except StoreError as error:
            logger.warning("spending of killed runs is not counted yet: %s", error)
        await asyncio.sleep(_RETRY_S)


def rolled_up(spent: Spent, tenants: Tenants) -> dict[tuple[str, str], dict[str, float]]:
    """The spending of each budget, from the spending of each key: a key's spending counts for its makers too. Spending
    without a key (under "") counts for no budget."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (key, period), by_run in spent.items():
        if not key:
            continue
        for name in [each.name for each in tenants.chain(key)] or [key]:
            held = found.setdefault((name, period), {})
            for run, usd in by_run.items():
                held[run] = held.get(run, 0.0) + usd
    return found
