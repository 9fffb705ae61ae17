"""One request to an emulated engine, and its whole answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from backends.emulator import EmulatedInstance

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
