"""A gateway in a process of its own, as tests hold it."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml


class Held:
    """A gateway in a process of its own, and the longest stalls that it tells of."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.http = http
        self._process = process

    async def told(self) -> dict[str, Any]:
        """Stalls and errors since the last call."""
        self._process.stdin.write(b"\n")
        return json.loads(await self._process.stdout.readline())

    async def post(self, path: str, data: bytes, method: str = "POST") -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        async with self.http.request(
            method, self.url + path, data=io.BytesIO(data), headers=headers
        ) as response:
            return response.status, await response.read()


@asynccontextmanager
async def held(tmp_path: Path, **sections: Any) -> AsyncIterator[Held]:
    fleet = {
        "store": {"url": f"sqlite+aiosqlite:///{tmp_path / 'headway.db'}"},
        "probes": {"interval_s": 3600, "timeout_s": 5},
        "models": [{"name": "m"}],
        "instances": [
            {
                "name": "e",
                "kind": "emulated",
                "serves": {"m": "m"},
                "profile": "llama-3.1-8b@a100-80g",
                "speed": 1000,
            }
        ],
    } | sections
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(fleet), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.integration.stalls.gateway", str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            yield Held(url, process, http)
    finally:
        process.stdin.close()
        await process.wait()
