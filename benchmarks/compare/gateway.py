"""Control calls of compare to a live gateway: is it up, is it idle, which outcomes and ratings did it record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

import aiohttp

from backends.engine_numbers import token_count
from benchmarks.checks import json_object
from benchmarks.replay.client import Target
from benchmarks.replay.row import Row
from benchmarks.workloads.format import WorkloadError

#: Gauges of work in hand, ours and vLLM's. A server without any of them is idle when we are.
_BUSY = re.compile(
    r"^(?:headway_(?:queue_depth|(?:instance_)?in_?flight)|vllm:num_requests_(?:running|waiting))(?:\{[^}]*\})? (\S+)",
    re.MULTILINE,
)
#: Only of a gateway with a judge.
_JUDGED = re.compile(r"^headway_judged_answers_total\{[^}]*\} (\S+)", re.MULTILINE)
#: Members of an answer's `headway` that a record has too.
_RECORDED = ("outcome", "slo_met", "model", "instance", "cost_usd")
_JUDGE_PAUSE_S = 1.0
_LOOKUPS_AT_ONCE = 8
_LOOKUP_LIMIT = 5000


class Gateway:
    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self._base = target.base_url
        self._headers = target.headers

    async def check(self) -> None:
        """A WorkloadError in one line if nobody listens."""
        await self._get("/v1/models")

    async def _get(self, path: str) -> bytes:
        """The body, empty unless the status is 200. A WorkloadError if nobody listens."""
        try:
            async with self._session.get(self._base + path, headers=self._headers) as answer:
                data = await answer.read()
                return data if answer.status == 200 else b""
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkloadError(f"no server at {self._base} ({type(error).__name__})") from error

    async def busy(self) -> float | None:
        """Requests queued or running at the server; None if it reports neither."""
        return _sum(_BUSY, await self._metrics())

    async def _metrics(self) -> str:
        """Its metrics; empty if it has none."""
        with suppress(WorkloadError):
            return (await self._get("/metrics")).decode(errors="replace")
        return ""

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

    async def until_judged(self, limit_s: float) -> bool:
        """Whether it judges a share of its answers. Waits, `limit_s` at most, until its judge has no more to do: between two
        answers nothing may be in hand, so its count must stand still too."""
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + limit_s, -1.0
        while (count := _sum(_JUDGED, text := await self._metrics())) is not None:
            if (count == before and not _sum(_BUSY, text)) or loop.time() >= deadline:
                return True
            before = count
            await asyncio.sleep(_JUDGE_PAUSE_S)
        return False

    async def look_up(self, rows: Sequence[Row], *, ratings: bool) -> None:
        """Fill `headway` and `gateway_outcome` of rows that carry none (refusals, broken streams) from `/v1/routing/ID`, and
        with `ratings` the `quality` of answers. A server without that call gets one such request."""
        missing = [
            row
            for row in rows
            if row.request_id is not None and (row.gateway_outcome is None or (ratings and row.complete))
        ]
        if not missing or not await self._look_up(missing[0]):
            return
        places = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

        async def one(row: Row) -> None:
            async with places:
                await self._look_up(row)

        await asyncio.gather(*(one(row) for row in missing[1:_LOOKUP_LIMIT]))

    async def _look_up(self, row: Row) -> bool:
        data = None
        with suppress(WorkloadError):
            data = json_object(await self._get(f"/v1/routing/{row.request_id}"))
        if data is None or not isinstance(outcome := data.get("outcome"), str):
            return False
        row.gateway_outcome = outcome
        if row.headway is None:
            row.headway = {name: data.get(name) for name in _RECORDED}
            row.headway["attempts"] = len(data.get("attempts") or ())
            row.output_tokens = row.output_tokens or token_count(data.get("output_tokens"))
            row.judge()
        if given := data.get("feedback"):
            row.quality = float(given[0]["quality"])
        return True


def _sum(pattern: re.Pattern[str], metrics: str) -> float | None:
    """The sum of a pattern's values in a page of metrics; None without any."""
    values = [float(value) for value in pattern.findall(metrics) if value != "NaN"]
    return sum(values) if values else None
