"""Emulated engines while a test runs; one request to one of them, and its whole answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from backends.emulator.instance import EmulatedInstance, start_all, stop_all

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def lines(self) -> list[Any]:
        """The objects of Ollama's lines."""
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def events(self) -> list[str]:
        """What stands behind `data: ` in a stream of events."""
        return [event[6:] for event in self.text.split("\n\n") if event]


@asynccontextmanager
async def serve(*instances: EmulatedInstance) -> AsyncIterator[tuple[EmulatedInstance, ...]]:
    """The started instances; they are stopped at the end."""
    await start_all(instances)
    try:
        yield instances
    finally:
        await stop_all(instances)


async def ask(
    instance: EmulatedInstance, path: str, body: Any = None, method: str | None = None, **options: Any
) -> Answer:
    """GET a path, or POST a JSON body."""
    method = method or ("GET" if body is None else "POST")
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, instance.url + path, json=body, **options) as answer,
    ):
        return Answer(answer.status, answer.headers, await answer.text())
