"""Two gateways with one Redis scale their fleet as one."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from router.background import failures
from tests.integration.gateway.live import Live, live
from tests.integration.scaling.clients import Clients, ask, serving
from tests.integration.scaling.test_processes import command, gated, pool
from tests.processes import descendants
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
            await first.until(lambda: serving(first) == ["small-0"])
            second = await gateway(second_stack)
            await second.until(lambda: serving(second) == ["small-0"])

            # Load at both: the sum decides, once.
            clients = [Clients(first), Clients(second)]
            for each in clients:
                each.are(2)
            for gw in (first, second):
                await gw.until(lambda gw=gw: serving(gw) == ["small-0", "small-1"])
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


def keepers() -> int:
    """The number of engines of this process's gateways."""
    return sum(b"router.scaling.keeper" in command(each) for each in descendants(os.getpid()))


async def test_another_decides_while_an_engine_starts_and_only_one_starts(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def scaling(interval_s: float) -> dict[str, Any]:
        pools = [gated(gate, min_instances=1)]
        return {"scaler": "none", "actuator": "processes", "interval_s": interval_s, "pools": pools}

    with RedisServer(tmp_path / "redis") as redis:
        state = {"url": redis.url, "timeout_ms": 5000}
        async with (
            live(tmp_path, environment=dict(os.environ), scaling=scaling(60.0), state=state) as first,
            live(tmp_path, environment=dict(os.environ), scaling=scaling(0.2), state=state) as second,
        ):
            # The first is slow to decide again, as one that was stopped for a while: the second decides.
            await first.until(keepers)
            while not (await second.get("/admin/scaling"))[1]["decided_here"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            gate.touch()
            for gw in (first, second):
                await gw.until(lambda gw=gw: serving(gw) == ["small-0"])
            await second.until(lambda: keepers() == 1)
            assert await ask(second, 5) == (200, 5, "[DONE]")


async def test_a_decision_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    scaling = {"actuator": "observe", "interval_s": 0.05, "pools": [pool()]}
    with RedisServer(tmp_path / "redis") as redis:
        async with live(tmp_path, environment={}, scaling=scaling, state={"url": redis.url}) as gw:
            before = dict(failures())
            await gw.until(lambda: gw.gateway.decision)
            redis.kill()
            await gw.until(lambda: not gw.gateway.state.health.connected)
            held = gw.gateway.decision
            redis.start()
            await gw.until(lambda: gw.gateway.decision is not held)
            assert failures() == before
