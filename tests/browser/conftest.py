"""A browser for all tests, and gateways for it to look at: over emulated engines, in this process, on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from benchmarks.workloads.format import Header, WorkloadRequest, write
from router.cli import main
from tests.browser.chromium import Watched, chromium, watched
from tests.integration.gateway.live import Live, key, live, vllm

ADMIN_KEY = "the-admin-key"

_COMPARED = """
models: [{name: llama-3.1-8b, context_tokens: 8192, price: {input_usd_per_mtok: 0.05, output_usd_per_mtok: 0.25}, slo: {ttft_ms: 300, tpot_ms: 30}}]
instances:
  - {name: h100, kind: emulated, profile: llama-3.1-8b@h100-80g, serves: {llama-3.1-8b: a}}
  - {name: l4, kind: emulated, profile: llama-3.1-8b@l4, serves: {llama-3.1-8b: a}}
"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one comparison and one plan, as `headway compare` and `headway plan` write them."""
    here = tmp_path_factory.mktemp("compared")
    (here / "fleet.yaml").write_text(_COMPARED)
    asked = (
        WorkloadRequest(f"r{at}", at * 0.05, 300 + at % 90, output_tokens=20 + at % 60) for at in range(120)
    )
    write(here / "workload.jsonl", Header("test"), asked)
    words = ("compare", "--workload", str(here / "workload.jsonl"), "--fleet", str(here / "fleet.yaml"))
    more = (
        "--policies", "round_robin,latency,slo", "--rates", "5,40", "--seeds", "2", "--oracle-seeds", "0",
        "--jobs", "1",
    )  # fmt: skip
    directory = here / "reports"
    directory.mkdir()
    assert main([*words, *more, "--out", str(directory / "small")]) == 0
    (here / "cluster.yaml").write_text("pools: [{gpu: l4, gpus: 3, node_gpus: 2, usd_per_hour: 0.7}]")
    (here / "models.yaml").write_text("models: [{name: llama-3.2-1b}, {name: llama-3.2-3b}]")
    files = ("--cluster", str(here / "cluster.yaml"), "--models", str(here / "models.yaml"))
    load = ("--rates", "llama-3.2-1b=1,llama-3.2-3b=0.5", "--slo", "ttft_ms=1500", "--limit", "60")
    brief = ("--time-s", "1", "--jobs", "1")
    assert main(["plan", *files, *load, *brief, "--out", str(directory / "cluster")]) == 0
    return directory


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory, reports: Path) -> AsyncIterator[Live]:
    """An open gateway: a fast instance, and a slow one whose answers last."""
    async with live(
        tmp_path_factory.mktemp("open"),
        vllm("fast"),
        vllm("slow", "qwen2.5-7b", speed=1.0),
        ui={"reports": str(reports)},
        models=[
            {
                "name": "llama-3.1-8b",
                "aliases": ["small"],
                "context_tokens": 8192,
                "price": {"input_usd_per_mtok": 0.05, "output_usd_per_mtok": 0.25},
                "quality": 0.5,
                "slo": {"ttft_ms": 5000},
            },
            {"name": "qwen2.5-7b", "context_tokens": 8192, "quality": 0.6},
        ],
    ) as gw:
        yield gw


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """A gateway with an admin key and one client key."""
    async with live(
        tmp_path_factory.mktemp("locked"),
        vllm("fast"),
        auth={"keys": [key("team-a")]},
        environment={"HEADWAY_ADMIN_KEY": ADMIN_KEY},
    ) as gw:
        yield gw


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, gateway: Live) -> AsyncIterator[Watched]:
    """A fresh page on the open gateway."""
    async with asyncio.timeout(60), watched(browser, gateway.url) as seen:
        yield seen
