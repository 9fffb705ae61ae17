"""Two gateways with one Redis scale their fleet as one."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from tests.integration.gateway.live import Live, live
from tests.integration.scaling.clients import Clients, ask, serving
from tests.integration.scaling.test_processes import pool
from tests.servers.redis import RedisServer


async def test_one_decides_and_the_other_goes_on_when_it_stops(tmp_path: Path) -> None:
    scaling = {
        "scaler": "concurrency",
        "settings": {"window_s": 30, "utilization": 1.0},
        "actuator": "processes",
        "interval_s": 0.3,
        "pools": [pool(min_instances=1)],
    }
    with RedisServer(tmp_path / "redis") as redis:
        async with AsyncExitStack() as second_stack, AsyncExitStack() as first_stack:

            async def gateway(stack: AsyncExitStack) -> Live:
                # Redis may be slow to answer on a busy machine: this is no test of being alone.
                state = {"url": redis.url, "timeout_ms": 5000}
                return await stack.enter_async_context(
                    live(tmp_path, environment=dict(os.environ), scaling=scaling, state=state)
                )

            first = await gateway(first_stack)
            await first.until(lambda: serving(first) == ["small-0"], 30)
            second = await gateway(second_stack)
            await second.until(lambda: serving(second) == ["small-0"], 30)

            # Load at both: the sum decides, once.
            clients = [Clients(first), Clients(second)]
            for each in clients:
                each.are(2)
            for gw in (first, second):
                await gw.until(lambda gw=gw: serving(gw) == ["small-0", "small-1"], 30)
            told = [(await gw.get("/admin/scaling"))[1] for gw in (first, second)]
            assert [each["decided_here"] for each in told] == [True, False]
            assert [each["pools"][0]["desired"] for each in told] == [2, 2]

            # The first stops. Its engines end after the second's streams, and the second starts others.
            clients[0].are(0)
            await clients[0].all_were_answered()
            long = asyncio.create_task(ask(second, 400))
            clients[1].are(0)
            await clients[1].all_were_answered()
            await first_stack.aclose()
            assert await long == (200, 400, "[DONE]")
            assert await ask(second, 5) == (200, 5, "[DONE]")
            assert (await second.get("/admin/scaling"))[1]["decided_here"]
