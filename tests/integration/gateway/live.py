"""A real gateway over real emulated engines, in this process, on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

import policies
from backends.emulator.instance import EmulatedInstance
from router.config import loads
from router.gateway.api import Api
from router.gateway.control import create_app
from router.gateway.server import GatewayServer, server_config
from router.gateway.service import Gateway
from router.serve import listen
from router.wiring import open_gateway

#: Emulated engines run this much faster than real ones unless a test says otherwise.
SPEED = 20.0

MODELS: list[dict[str, Any]] = [
    {
        "name": "llama-3.1-8b",
        "family": "llama",
        "aliases": ["small"],
        "context_tokens": 8192,
        "price": {"input_usd_per_mtok": 0.05, "output_usd_per_mtok": 0.25},
        "quality": 0.5,
    },
    {
        "name": "qwen2.5-7b",
        "family": "qwen",
        "context_tokens": 8192,
        "price": {"input_usd_per_mtok": 0.04, "output_usd_per_mtok": 0.10},
        "quality": 0.6,
    },
]


@dataclass
class Live:
    """What a test holds: the gateway, its URL, its engines by name, and an HTTP client."""

    gateway: Gateway
    url: str
    engines: dict[str, EmulatedInstance]
    http: aiohttp.ClientSession

    async def chat(self, **body: Any) -> tuple[int, Mapping[str, str], Any]:
        """One non-streaming chat: status, headers, JSON."""
        headers = body.pop("headers", None)
        body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4} | body
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            return response.status, response.headers, await response.json()

    async def get(self, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.http.get(self.url + path, **kwargs) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body, **kwargs) as response:
            return response.status, await response.json()

    async def row(self, request_id: str) -> dict[str, Any]:
        """The recorded row of a request; waits a moment for one that ends with its client's going."""
        for _ in range(200):
            row = await self.gateway.store.request(request_id, any_key=True)
            if row is not None:
                return row
            await asyncio.sleep(0.02)
        raise AssertionError(f"no row for {request_id}")

    async def rows(self) -> list[dict[str, Any]]:
        """All recorded rows, oldest first."""
        page = await self.gateway.store.requests(limit=1000)
        return page.requests[::-1]

    async def until(self, condition: Any, within_s: float = 10.0) -> None:
        """Wait until `condition()` holds."""
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)


def vllm(
    name: str, model: str = "llama-3.1-8b", *, hardware: str = "a100-80g", **settings: Any
) -> EmulatedInstance:
    """An emulated vLLM that serves `model` under its own engine-side name."""
    return EmulatedInstance(
        name, "vllm", {f"up/{model}": f"{model}@{hardware}"}, **{"speed": SPEED} | settings
    )


def ollama(name: str, *models: str, hardware: str = "rtx-4090", **settings: Any) -> EmulatedInstance:
    """An emulated Ollama that serves models under `NAME:latest`."""
    served = {f"{model}:latest": f"{model}-q4@{hardware}" for model in models}
    return EmulatedInstance(name, "ollama", served, **{"speed": SPEED} | settings)


def fleet_of(
    engines: Sequence[EmulatedInstance], instance: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Fleet-file instances for running engines; `instance` adds members by engine name."""
    found = []
    for engine in engines:
        serves = {model.removeprefix("up/").removesuffix(":latest"): model for model in engine.models}
        found.append(
            {"name": engine.name, "kind": engine.kind, "url": engine.url, "serves": serves}
            | ({"hardware": "a100-80g"} if engine.kind == "vllm" else {"hardware": "rtx-4090"})
            | dict(instance.get(engine.name, {}))
        )
    return found


@asynccontextmanager
async def live(
    tmp_path: Path,
    *engines: EmulatedInstance,
    models: Sequence[Mapping[str, Any]] | None = None,
    instance: Mapping[str, Mapping[str, Any]] | None = None,
    extra_instances: Sequence[Mapping[str, Any]] = (),
    environment: Mapping[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[Live]:
    """Start `engines` and a gateway over them. `sections` are further parts of the fleet file."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        fleet: dict[str, Any] = {
            "store": {"url": f"sqlite+aiosqlite:///{tmp_path / 'headway.db'}"},
            "probes": {"interval_s": 0.1, "timeout_s": 1.0, "eject_after": 2, "return_after": 1},
            "models": [dict(model) for model in (models or MODELS)],
            "instances": [*fleet_of(engines, instance or {}), *map(dict, extra_instances)],
        } | sections
        config = loads(yaml.safe_dump(fleet), "test.yaml", policies=tuple(policies.POLICIES))
        gateway = await stack.enter_async_context(
            open_gateway(config, reload=lambda: config, environment=environment or {}, seed=0)
        )
        listener = listen("127.0.0.1", 0)
        stack.callback(listener.close)
        server = GatewayServer(server_config(Api(gateway, create_app(gateway)), "127.0.0.1", 0, grace_s=1.0))
        started = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await started

        stack.push_async_callback(stop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        while not server.started:
            await asyncio.sleep(0.01)
        yield Live(
            gateway, "http://127.0.0.1:%d" % listener.getsockname()[1], {e.name: e for e in engines}, http
        )
