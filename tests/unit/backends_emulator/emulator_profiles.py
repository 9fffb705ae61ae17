"""Profiles for tests, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.core.profile import EngineProfile

#: One step a millisecond whatever the batch, 4096 tokens of KV memory, 50 ms to load.
QUICK = EngineProfile(
    name="quick-1b@bench",
    overhead_s=0.001,
    floor_s=0.0,
    per_token_s=0.0,
    per_kv_token_s=0.0,
    per_pair_s=0.0,
    kv_capacity_tokens=4096,
    load_s=0.05,
    slots=2,
)
#: The same with 0.2 s a step: time enough to look at an answer in the middle.
SLOW = EngineProfile(
    name="slow-1b@bench",
    overhead_s=0.2,
    floor_s=0.0,
    per_token_s=0.0,
    per_kv_token_s=0.0,
    per_pair_s=0.0,
    kv_capacity_tokens=4096,
    load_s=0.05,
    slots=2,
)


async def eventually(true: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait until `true()` holds; fails when it does not in time."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 (a test polls what nobody announces)
            await asyncio.sleep(0.005)
