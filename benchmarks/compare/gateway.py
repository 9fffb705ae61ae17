"""Control calls of compare to a live gateway: is it up, is it idle, which outcomes did it record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import aiohttp

from benchmarks.replay.client import Target
from benchmarks.replay.row import Row
from benchmarks.workloads.format import WorkloadError

#: Gauges of work in hand, ours and vLLM's. A server without any of them is idle when we are.
_BUSY = re.compile(
    r"^(?:headway_(?:queue_depth|(?:instance_)?in_?flight)|vllm:num_requests_(?:running|waiting))(?:\{[^}]*\})? (\S+)",
    re.MULTILINE,
)
_LOOKUPS_AT_ONCE = 8
_LOOKUP_LIMIT = 5000


class Gateway:
    """Control calls to the server that a comparison runs against."""

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self._base = target.base_url
        self._headers = target.headers

    async def check(self) -> None:
        """A WorkloadError in one line if nobody listens."""
        try:
            async with self._session.get(f"{self._base}/v1/models", headers=self._headers) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkloadError(f"no server at {self._base} ({type(error).__name__})") from error

    async def busy(self) -> float | None:
        """Requests queued or running at the server; None if it reports neither."""
        try:
            async with self._session.get(f"{self._base}/metrics", headers=self._headers) as answer:
                if answer.status != 200:
                    return None
                text = await answer.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError):
            return None
        values = [float(value) for value in _BUSY.findall(text) if value != "NaN"]
        return sum(values) if values else None

    async def until_idle(self, *, settle_s: float, limit_s: float) -> bool:
        """Wait `settle_s`, then until nothing is in hand, `limit_s` at most. Whether it became idle."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        await asyncio.sleep(settle_s)
        while await self.busy():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(min(0.25, settle_s or 0.25))
        return True

    async def look_up_outcomes(self, rows: Sequence[Row]) -> None:
        """Fill `gateway_outcome` of rows that carry none (refusals, broken streams) from `/v1/routing/ID`.

        A server without that call gets one such request.
        """
        missing = [row for row in rows if row.gateway_outcome is None and row.request_id is not None]
        if not missing or not await self._look_up(missing[0]):
            return
        places = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

        async def one(row: Row) -> None:
            async with places:
                await self._look_up(row)

        await asyncio.gather(*(one(row) for row in missing[1:_LOOKUP_LIMIT]))

    async def _look_up(self, row: Row) -> bool:
        url = f"{self._base}/v1/routing/{row.request_id}"
        try:
            async with self._session.get(url, headers=self._headers) as answer:
                data: Any = await answer.json(content_type=None) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False
        outcome = data.get("outcome") if isinstance(data, dict) else None
        row.gateway_outcome = outcome if isinstance(outcome, str) else None
        return row.gateway_outcome is not None
