"""`headway serve` with several workers as an operator runs it: a process of its own over a fleet file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from backends.emulator.instance import EmulatedInstance
from tests.integration.gateway.live import MODELS, SPEED, fleet_of, vllm
from tests.processes import children

#: Without the operator's own admin key, so that /admin answers on loopback.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
CHAT = {"model": "small", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Running:
    """A supervisor that serves, its URL, and a client whose every request has a connection of its own."""

    process: asyncio.subprocess.Process
    url: str
    file: Path
    log: Path
    http: aiohttp.ClientSession

    def workers(self) -> list[int]:
        """The live workers' ids, oldest first."""
        return [pid for pid in children(self.process.pid) if "router.worker" in command(pid)]

    def engine_processes(self) -> int:
        """Processes that run emulated engines, of the supervisor or of any worker."""
        ours = children(self.process.pid)
        all_of_us = [*ours, *(pid for each in ours for pid in children(each))]
        return sum("router.emulated" in command(pid) for pid in all_of_us)

    def change(self, **sections: Any) -> None:
        """Write other sections into the fleet file."""
        fleet = yaml.safe_load(self.file.read_text())
        self.file.write_text(yaml.safe_dump(fleet | sections))

    async def chat(self, **body: Any) -> dict[str, Any]:
        async with self.http.post(f"{self.url}/v1/chat/completions", json=CHAT | body) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def everywhere(self, seen: Callable[[], Any], wanted: Any) -> None:
        """Wait until `seen()` is what is wanted twenty times on end, so that every worker was asked."""
        in_a_row = 0
        async with asyncio.timeout(60):
            while in_a_row < 20:
                in_a_row = in_a_row + 1 if await seen() == wanted else 0

    async def metrics(self) -> dict[str, Any]:
        """One scrape; every family stands once."""
        async with self.http.get(f"{self.url}/metrics") as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            families = list(text_string_to_metric_families(await response.text()))
        found = {family.name: family for family in families}
        assert len(found) == len(families)
        return found

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()


def command(pid: int) -> list[str]:
    """Its command line; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def by_worker(family: Any, **labels: str) -> dict[str, float]:
    """Values summed by worker (of a histogram: its count)."""
    sums: dict[str, float] = {}
    for sample in family.samples:
        if sample.name.endswith(("_bucket", "_sum")) or not labels.items() <= sample.labels.items():
            continue
        worker = sample.labels["worker"]
        sums[worker] = sums.get(worker, 0.0) + sample.value
    return sums


def write_fleet(
    directory: Path, redis_url: str, *engines: EmulatedInstance, more: Mapping[str, Any] | None = None
) -> Path:
    """A fleet file for two workers over running engines; `more` are further sections."""
    fleet = {
        "server": {"port": 0, "workers": 2},
        "store": {"url": f"sqlite+aiosqlite:///{directory / 'headway.db'}"},
        # A busy machine has time to answer.
        "state": {"url": redis_url, "name": directory.name, "timeout_ms": 5000},
        "probes": {"interval_s": 0.2, "timeout_s": 10.0},
        "models": MODELS,
        "instances": fleet_of(engines, {}),
    }
    file = directory / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet | dict(more or {})))
    return file


@asynccontextmanager
async def engine_at(speed: float = SPEED) -> AsyncIterator[EmulatedInstance]:
    """An emulated vLLM in the test's own process, which outlives the gateway."""
    engine = vllm("a", speed=speed)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def start(file: Path, *arguments: str) -> asyncio.subprocess.Process:
    """`headway serve` over a file; its standard error goes into `serve.log` beside it."""
    with (file.parent / "serve.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router.cli", "serve", "--config", str(file), *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=ENVIRONMENT,
        )


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[Running]:
    """Two workers over a fleet file, until the test has ended."""
    process = await start(file)
    log = file.parent / "serve.log"
    workers: list[int] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("Headway listens on http://127.0.0.1:"), log.read_text()
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            running = Running(process, line.split()[3], file, log, http)
            workers = running.workers()
            assert len(workers) == 2
            yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        for worker in workers:  # they end by themselves, and this must hold for a failed test too
            if "router.worker" in command(worker):
                os.kill(worker, signal.SIGKILL)


async def lines(response: aiohttp.ClientResponse) -> list[Any]:
    """The rest of a stream: its events' JSON, `"[DONE]"` as it stands."""
    payloads = [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]
    return [payload.decode() if payload == b"[DONE]" else json.loads(payload) for payload in payloads]
