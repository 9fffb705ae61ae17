"""A gateway over emulated engines, in this process, on free ports. All of it goes by the running loop's time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from backends.emulator.faults import Fault, FaultKind
from backends.emulator.instance import EmulatedInstance
from router.config import FleetConfig, loads
from router.core.state import Instance
from router.gateway.asgi import Application
from router.gateway.endpoints import ROUTES
from router.gateway.http.server import GatewayServer
from router.gateway.judge import hot_paths
from router.gateway.service import Gateway
from router.listening import listen
from router.wiring import open_gateway
from tests.virtual_time import loop_time
from tests.waiting import until

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
    """What a test holds: the gateway, its URL, its engines by name, and an HTTP client. A reload reads
    `fleet`, the fleet file as a test may have changed it."""

    gateway: Gateway
    url: str
    engines: dict[str, EmulatedInstance]
    http: aiohttp.ClientSession
    fleet: dict[str, Any]
    server: GatewayServer

    def server_connections(self) -> int:
        """Connections of clients that are open now."""
        return len(self.server.server_state.connections)

    @property
    def instances(self) -> dict[str, Instance]:
        """The scheduler's instances by name."""
        return self.gateway.runner.scheduler.instances

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def chat(self, **body: Any) -> tuple[int, Mapping[str, str], Any]:
        """One non-streaming chat: status, headers, JSON."""
        headers = body.pop("headers", None)
        body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4} | body
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            return response.status, response.headers, await response.json()

    @asynccontextmanager
    async def stream(self, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One streaming chat, its head received; what is not read is given up at the end."""
        headers = body.pop("headers", None)
        body = {
            "model": "auto",
            "stream": True,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 2000,
        } | body
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            yield response
            response.close()

    async def send(self, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        """One request and its answer: status, JSON."""
        async with self.http.request(method, self.url + path, **kwargs) as response:
            return response.status, await response.json()

    async def get(self, path: str, **kwargs: Any) -> tuple[int, Any]:
        return await self.send("GET", path, **kwargs)

    async def post(self, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        return await self.send("POST", path, json=body, **kwargs)

    async def patch(self, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        return await self.send("PATCH", path, json=body, **kwargs)

    async def delete(self, path: str, **kwargs: Any) -> tuple[int, Any]:
        return await self.send("DELETE", path, **kwargs)

    async def metrics(self) -> str:
        """The page of metrics."""
        async with self.http.get(f"{self.url}/metrics") as response:
            assert response.status == 200
            return await response.text()

    async def row(self, request_id: str) -> dict[str, Any]:
        """The recorded row of a request; waits a moment for one that ends with its client's going."""
        for _ in range(3000):
            row = await self.gateway.store.request(request_id, any_key=True)
            if row is not None:
                return row
            await asyncio.sleep(0.02)
        raise AssertionError(f"no row for {request_id}")

    async def rows(self) -> list[dict[str, Any]]:
        """All rows recorded by now, oldest first."""
        page = await self.gateway.store.requests(limit=1000)
        return page.requests[::-1]

    async def raw(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send bytes on a connection of their own and read until the server closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(10):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def warm(self, name: str, model: str) -> None:
        """Have an Ollama load a model, and the gateway know it."""
        assert (await self.chat(model=model))[0] == 200
        await self.until(lambda: self.instances[name].report.loaded_models)

    async def gone(self, *clients: asyncio.Task[Any]) -> None:
        """Clients leave; wait until nothing is under way."""
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await self.until(lambda: not self.gateway.runner.scheduler.live)

    until = staticmethod(until)


def key(secret: str, **settings: Any) -> dict[str, Any]:
    """A client key of the fleet file, named as its secret."""
    return {"name": secret, "sha256": hashlib.sha256(secret.encode()).hexdigest()} | settings


def bearer(secret: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {secret}"}


def fault(kind: str, **settings: Any) -> Fault:
    """A fault of the emulator."""
    return Fault(FaultKind(kind), **settings)


def post(body: bytes, *headers: bytes, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    """A request, to be sent as it is."""
    head = b"".join(b"%b\r\n" % header for header in headers)
    return b"POST %b HTTP/%b\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        version.encode(),
        head,
        len(body),
        body,
    )


def events(text: str) -> list[Any]:
    """The JSON of a stream's events, `"[DONE]"` as it stands."""
    payloads = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def vllm(
    name: str, model: str = "llama-3.1-8b", *, hardware: str = "a100-80g", **settings: Any
) -> EmulatedInstance:
    """An emulated vLLM that serves `model` under its own engine-side name."""
    return EmulatedInstance(
        name,
        "vllm",
        {f"up/{model}": f"{model}@{hardware}"},
        **{"speed": SPEED, "clock": loop_time} | settings,
    )


def ollama(name: str, *models: str, hardware: str = "rtx-4090", **settings: Any) -> EmulatedInstance:
    """An emulated Ollama that serves models under `NAME:latest`."""
    served = {f"{model}:latest": f"{model}-q4@{hardware}" for model in models}
    return EmulatedInstance(name, "ollama", served, **{"speed": SPEED, "clock": loop_time} | settings)


def entry(engine: EmulatedInstance, **members: Any) -> dict[str, Any]:
    """A running engine as an instance of the fleet file."""
    serves = {model.removeprefix("up/").removesuffix(":latest"): model for model in engine.models}
    return {"name": engine.name, "kind": engine.kind, "url": engine.url, "serves": serves} | members


def fleet_of(
    engines: Sequence[EmulatedInstance], instance: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Fleet-file instances for running engines; `instance` adds members by engine name."""
    hardware = {"vllm": "a100-80g", "ollama": "rtx-4090"}
    return [
        entry(engine, hardware=hardware[engine.kind]) | dict(instance.get(engine.name, {}))
        for engine in engines
    ]


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
            "probes": {"interval_s": 0.1, "timeout_s": 10.0, "eject_after": 2, "return_after": 1},
            "models": [dict(model) for model in (models or MODELS)],
            "instances": [*fleet_of(engines, instance or {}), *map(dict, extra_instances)],
        } | sections

        def read() -> FleetConfig:
            return loads(yaml.safe_dump(fleet), "test.yaml")

        gateway = await stack.enter_async_context(
            open_gateway(read(), reload=read, environment=environment or {}, seed=0, clock=loop_time)
        )
        listener = listen("127.0.0.1", 0)
        stack.callback(listener.close)
        app, handler = Application(gateway), hot_paths(gateway)
        server = GatewayServer(app, lambda: gateway.config, ROUTES, handler, grace_s=1.0)
        started = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await started

        stack.push_async_callback(stop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        while not server.started:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Live(gateway, url, {engine.name: engine for engine in engines}, http, fleet, server)
