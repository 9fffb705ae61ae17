"""Loads what keys spent in earlier runs, so that a restart refills no budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from router.gateway.keys.accounts import Account
from router.gateway.keys.admission import rolled_up
from router.store.database import StoreError
from router.store.queries import Store
from router.store.state import State

logger = logging.getLogger("headway")

#: A failed read is repeated after this long.
_RETRY_S = 5.0


async def load_spending(store: Store, state: State, accounts: Mapping[str, Account]) -> None:
    """Load what is recorded into the state. `accounts` are by key. Raises StoreError."""
    spent = await store.spent(by_run=state.health.shared)  # replicas tell each other what each run has spent
    state.load_spent(rolled_up(spent, accounts))


async def load_late_spending(
    store: Store, state: State, accounts: Callable[[], Mapping[str, Account]]
) -> None:
    """Load again when the records that killed runs left on disk are in the store, which may take long."""
    late = await store.taken_up()
    while late:
        try:
            await load_spending(store, state, accounts())
            return
        except StoreError as error:
            logger.warning("spending of killed runs is not counted yet: %s", error)
        await asyncio.sleep(_RETRY_S)
