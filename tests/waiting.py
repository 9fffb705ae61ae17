"""Bounded waits for what nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until `condition()` holds. Raises TimeoutError after `within_s` of the running loop's time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.005)
