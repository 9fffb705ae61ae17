"""A gateway that starts and stops emulated engines as child processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway.live import Live, live
from tests.integration.scaling.clients import Clients, ask, serving
from tests.processes import children, descendants, is_running

PROFILE = "llama-3.1-8b@l4"


def pool(**settings: Any) -> dict[str, Any]:
    """A pool of emulated engines with two seats each."""
    return {
        "name": "small",
        "instance": {
            "kind": "vllm",
            "hardware": "l4",
            "max_concurrency": 2,
            "serves": {"llama-3.1-8b": "up/llama-3.1-8b"},
        },
        "min_instances": 0,
        "max_instances": 3,
        "cooldown_s": 0.5,
        "cold_start_s": 1,
        "command": [
            *(sys.executable, "-m", "router.cli", "emulate", "--kind", "vllm", "--profile", PROFILE),
            *("--model", "up/llama-3.1-8b", "--port", "{port}", "--speed", "10"),
        ],
    } | settings


@asynccontextmanager
async def scaled(tmp_path: Path, *pools: dict[str, Any], **sections: Any) -> AsyncIterator[Live]:
    scaling = {
        "scaler": "concurrency",
        "settings": {"window_s": 0.6, "utilization": 1.0},
        "actuator": "processes",
        "interval_s": 0.2,
        "pools": list(pools),
    }
    async with live(tmp_path, environment=dict(os.environ), scaling=scaling, **sections) as gw:
        yield gw


async def test_load_triples_and_halves_and_no_stream_is_lost(tmp_path: Path) -> None:
    async with scaled(tmp_path, pool()) as gw:
        assert (await gw.get("/readyz"))[0] == 200  # requests are held
        assert serving(gw) == []
        clients = Clients(gw)
        clients.are(2)
        await gw.until(lambda: len(serving(gw)) == 1)
        clients.are(6)
        await gw.until(lambda: len(serving(gw)) == 3)
        _, told = await gw.get("/admin/scaling")
        assert told["models"][0]["desired_replicas"] == told["pools"][0]["desired"] == 3
        clients.are(3)
        await gw.until(lambda: len(serving(gw)) == 2)
        clients.are(0)
        await gw.until(lambda: serving(gw) == [])
        await clients.all_were_answered()
        assert len(clients.answers) > 10


async def test_a_request_wakes_a_pool_at_once_and_waits_for_it(tmp_path: Path) -> None:
    settings = {
        "scaler": "concurrency",
        "settings": {"utilization": 1.0},
        "actuator": "processes",
        "interval_s": 60.0,
        "pools": [pool()],
    }
    async with live(tmp_path, environment=dict(os.environ), scaling=settings) as gw:
        assert await asyncio.gather(*(ask(gw, 5) for _ in range(2))) == [(200, 5, "[DONE]")] * 2
        _, told = await gw.get("/admin/scaling")
        assert (told["models"][0]["replicas"], told["decided_here"]) == (1, True)
        rows = await gw.rows()
        assert {row["instance"] for row in rows} == {"small-0"}
        # A model without a pool is refused as before.
        assert (await gw.chat(model="qwen2.5-7b"))[2]["error"]["code"] == "no_instance"


async def test_an_engine_that_dies_is_replaced(tmp_path: Path) -> None:
    async with scaled(tmp_path, pool(min_instances=1)) as gw:
        await gw.until(lambda: serving(gw) == ["small-0"])
        (keeper,) = [each for each in descendants(os.getpid()) if b"router.scaling.keeper" in command(each)]
        (engine,) = children(keeper)
        os.kill(engine, signal.SIGKILL)
        await gw.until(lambda: serving(gw) == [])
        assert await ask(gw, 5) == (200, 5, "[DONE]")  # it waits for the next one
        assert not is_running(engine)


async def test_an_engine_that_an_operator_has_removed_is_replaced(tmp_path: Path) -> None:
    async with scaled(tmp_path, pool(min_instances=1, max_instances=1)) as gw:
        await gw.until(lambda: serving(gw) == ["small-0"])
        url = gw.gateway.config.instance("small-0").url
        assert (await gw.delete("/admin/instances/small-0"))[0] == 200
        await gw.until(lambda: len(serving(gw)) == 1)
        assert url not in [each.url for each in gw.gateway.config.instances]


async def test_engines_that_crash_together_double_the_pause_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def pauses_s() -> list[str]:
        told = [each.message for each in caplog.records if "the next one starts after" in each.message]
        return [each.partition("starts after ")[2].split()[0] for each in told]

    async with scaled(tmp_path, pool(min_instances=3, command=["false", "{port}"])) as gw:
        await gw.until(lambda: len(pauses_s()) >= 6)
        assert pauses_s()[:6] == ["1", "1", "1", "2", "2", "2"]


def gated(gate: Path, **settings: Any) -> dict[str, Any]:
    """A pool whose engines wait until `gate` exists before they start."""
    engine = pool(**settings)
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done; exec " + '"$@"'
    return engine | {"command": ["sh", "-c", wait, "sh", *engine["command"]]}


async def test_an_engine_whose_name_was_taken_while_it_started_makes_room_for_another(tmp_path: Path) -> None:
    async with scaled(tmp_path, gated(tmp_path / "gate", min_instances=1)) as gw:
        await gw.until(lambda: descendants(os.getpid()))
        other = {
            "name": "small-0",
            "kind": "vllm",
            "url": "http://127.0.0.1:9",
            "serves": {"qwen2.5-7b": "q"},
        }
        assert (await gw.post("/admin/instances", other))[0] == 201
        (tmp_path / "gate").touch()
        await gw.until(lambda: "small-1" in serving(gw))
        assert await ask(gw, 5) == (200, 5, "[DONE]")
        keepers = [each for each in descendants(os.getpid()) if b"router.scaling.keeper" in command(each)]
        assert len(keepers) == 1


async def test_a_reload_of_the_fleet_file_keeps_the_engines(tmp_path: Path) -> None:
    async with scaled(tmp_path, pool(min_instances=1)) as gw:
        await gw.until(lambda: serving(gw) == ["small-0"])
        (keeper,) = [each for each in descendants(os.getpid()) if b"router.scaling.keeper" in command(each)]
        stream = asyncio.create_task(ask(gw, 300))
        await gw.until(lambda: gw.instances["small-0"].in_flight)
        assert (await gw.post("/admin/reload", {}))[0] == 200
        await gw.until(lambda: serving(gw) == ["small-0"])
        assert await stream == (200, 300, "[DONE]")
        assert is_running(keeper)


async def test_a_changed_command_replaces_engines_that_are_still_starting(tmp_path: Path) -> None:
    async with scaled(tmp_path, gated(tmp_path / "never", min_instances=1, cold_start_s=600)) as gw:
        await gw.until(lambda: descendants(os.getpid()))
        gw.fleet["scaling"]["pools"] = [pool(min_instances=1)]
        assert (await gw.post("/admin/reload", {}))[0] == 200
        await gw.until(lambda: serving(gw))
        keepers = [each for each in descendants(os.getpid()) if b"router.scaling.keeper" in command(each)]
        assert len(keepers) == 1


async def test_an_engine_whose_model_has_left_the_fleet_file_ends_after_its_streams(tmp_path: Path) -> None:
    async with scaled(tmp_path, pool(min_instances=1)) as gw:
        await gw.until(lambda: serving(gw) == ["small-0"])
        stream = asyncio.create_task(ask(gw, 1000))
        await gw.until(lambda: gw.instances["small-0"].in_flight)
        gw.fleet["models"] = [each for each in gw.fleet["models"] if each["name"] == "qwen2.5-7b"]
        gw.fleet["scaling"]["pools"] = []
        assert (await gw.post("/admin/reload", {}))[0] == 200
        assert await stream == (200, 1000, "[DONE]")
        async with asyncio.timeout(60):
            while any(b"keeper" in command(each) for each in descendants(os.getpid())):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def command(pid: int) -> bytes:
    """Its command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


FLEET = """
server: {{port: 0}}
store: {{url: "sqlite+aiosqlite:///{directory}/headway.db"}}
models: [{{name: llama-3.1-8b}}]
scaling: {scaling}
"""


async def test_a_killed_gateway_leaves_no_engine(tmp_path: Path) -> None:
    scaling = {"scaler": "none", "actuator": "processes", "interval_s": 0.2, "pools": [pool(min_instances=1)]}
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.format(directory=tmp_path, scaling=json.dumps(scaling)))
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "serve", "--config", str(fleet)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert gateway.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"is ready after" not in (line := await gateway.stderr.readline()):
                assert line, "the gateway has ended"
        below = descendants(gateway.pid)
        engines = [each for each in below if b"emulate" in command(each)]
        assert len(engines) == 2  # a keeper and its engine
    finally:
        gateway.kill()
        await gateway.wait()
    async with asyncio.timeout(60):
        while any(is_running(each) for each in below):  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.05)
