"""A gateway that only shows how many instances it wants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.integration.gateway.live import Live, live, vllm
from tests.integration.scaling.clients import Clients

POOL = {
    "name": "big",
    "instance": {
        "kind": "vllm",
        "hardware": "a100-80g",
        "max_concurrency": 1,
        "serves": {"llama-3.1-8b": "x"},
    },
    "max_instances": 4,
}


def scaling(**pool: Any) -> dict[str, Any]:
    return {
        "scaler": "concurrency",
        "settings": {"utilization": 1.0},
        "interval_s": 0.1,
        "pools": [POOL | pool],
    }


async def desired(gw: Live) -> int | None:
    found = (await gw.get("/admin/scaling"))[1]
    return found["pools"][0]["desired"] if found["pools"] else None


async def test_what_is_wanted_is_in_the_metrics_and_in_the_admin_api(tmp_path: Path) -> None:
    one = {"a": {"max_concurrency": 1}}
    async with live(tmp_path, vllm("a"), instance=one, scaling=scaling()) as gw:
        await gw.until(lambda: gw.gateway.decision is not None)
        assert await desired(gw) == 1
        clients = Clients(gw, tokens=500)
        clients.are(3)
        await gw.until(lambda: gw.gateway.decision.wanted == {"big": 3})
        _, told = await gw.get("/admin/scaling")
        model = next(each for each in told["models"] if each["model"] == "llama-3.1-8b")
        assert (model["desired_replicas"], model["replicas"]) == (3, 1)
        assert {"pool": "big", "ready": 1, "starting": 0, "draining": 0}.items() <= told["pools"][0].items()
        assert (told["scaler"], told["actuator"], told["decided_here"]) == ("concurrency", "observe", True)
        async with gw.http.get(f"{gw.url}/metrics") as response:
            page = await response.text()
        assert 'headway_desired_replicas{model="llama-3.1-8b"} 3' in page
        assert 'headway_pool_instances{pool="big",state="ready"} 1' in page
        clients.are(0)
        await clients.all_were_answered()
        # A reload applies to the next decision; one with settings that the scaler does not take is refused.
        gw.fleet["scaling"] = scaling(min_instances=2)
        await gw.post("/admin/reload", {})
        await gw.until(lambda: gw.gateway.decision.wanted == {"big": 2})
        gw.fleet["scaling"] = scaling() | {"settings": {"unknown": 1}}
        status, answer = await gw.post("/admin/reload", {})
        assert status == 422
        assert "unknown" in answer["error"]["message"]
        assert gw.gateway.config.scaling.pools[0].min_instances == 2


async def test_requests_wait_only_for_a_pool_that_scales_to_zero(tmp_path: Path) -> None:
    async with live(tmp_path, scaling=scaling()) as gw:
        status, _, answer = await gw.chat(model="llama-3.1-8b")
        assert (status, answer["error"]["code"]) == (503, "no_instance")
        assert (await gw.get("/readyz"))[0] == 503
        gw.fleet["scaling"] = scaling(min_instances=0)
        await gw.post("/admin/reload", {})
        assert (await gw.get("/readyz"))[0] == 200
        waiting = asyncio.create_task(gw.chat(model="llama-3.1-8b"))
        await gw.until(lambda: gw.gateway.runner.scheduler.queue_depth == 1)
        await gw.until(lambda: gw.gateway.decision.wanted == {"big": 1})
        # Whoever scales the fleet starts an instance.
        engine = vllm("late")
        await engine.start()
        added = {
            "name": "late",
            "kind": "vllm",
            "url": engine.url,
            "serves": {"llama-3.1-8b": "up/llama-3.1-8b"},
        }
        assert (await gw.post("/admin/instances", added | {"hardware": "a100-80g"}))[0] == 201
        status, headers, _ = await waiting
        assert (status, headers["x-headway-instance"]) == (200, "late")
        # An answer in the dry run, as for any other instance; and its name cannot be taken.
        assert (await gw.post("/admin/instances", added | {"name": "big"}))[0] == 422
        await engine.stop()


async def test_a_waiting_request_ends_by_its_own_limit(tmp_path: Path) -> None:
    limits = {"request_timeout_s": 0.5}
    async with live(tmp_path, scaling=scaling(min_instances=0), limits=limits) as gw:
        status, _, answer = await gw.chat(model="llama-3.1-8b")
        assert (status, answer["error"]["code"]) == (504, "ttft_timeout")
