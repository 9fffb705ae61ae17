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


class RecordedSpending:
    """Reads spending from the store into the state. `accounts` gives the current accounts by key."""

    def __init__(self, store: Store, state: State, accounts: Callable[[], Mapping[str, Account]]) -> None:
        self._store = store
        self._state = state
        self._accounts = accounts

    async def load(self) -> None:
        """Load what is recorded. Raises StoreError."""
        self._state.load_spent(rolled_up(await self._store.spent(), self._accounts()))

    async def load_late(self) -> None:
        """Load again when the records that killed runs left on disk are in the store, which may take long."""
        late = await self._store.taken_up()
        while late:
            try:
                await self.load()
                return
            except StoreError as error:
                logger.warning("spending of killed runs is not counted yet: %s", error)
            await asyncio.sleep(_RETRY_S)
