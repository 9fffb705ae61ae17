"""Finds the record of a request that another replica may have just served."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from router.store.queries import Store
from router.store.state import State

#: A row reaches the store within about 0.2 s of its request's end. A missing row is looked up again after this time.
_RECORDED_S = 0.3


class RecordLookup:
    """Looks rows up twice where other replicas may still be writing them."""

    def __init__(self, store: Store, state: State) -> None:
        self._store = store
        self._state = state

    async def find(
        self, request_id: str, key: str | None = None, *, any_key: bool = False
    ) -> dict[str, Any] | None:
        """The row of a request, as `Store.request` finds it."""
        find = partial(self._store.request, request_id, key, any_key=any_key)
        row = await find()
        if row is None and await self.waited():
            row = await find()
        return row

    async def waited(self) -> bool:
        """Wait for rows of other replicas to reach the store; False, at once, if there are no other replicas."""
        if self._state.health.replicas == 1:
            return False
        await asyncio.sleep(_RECORDED_S)
        return True
