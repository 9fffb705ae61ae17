"""Clients that ask a gateway for one stream after another, and what they got."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.gateway.live import Live, events

Answer = tuple[int, int, Any]


def serving(gw: Live) -> list[str]:
    """The instances that take requests."""
    return [name for name, each in gw.instances.items() if not each.starting and not each.draining]


async def ask(gw: Live, tokens: int) -> Answer:
    """One stream: its status, its tokens by the usage, and its last event."""
    body = {"max_tokens": tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}
    async with gw.stream(model="llama-3.1-8b", **body) as response:
        told = events((await response.read()).decode())
        usage = told[-2].get("usage") if len(told) > 1 else None
        return response.status, usage["completion_tokens"] if usage else 0, told[-1]


class Clients:
    """As many clients as wanted, each with one stream at a time."""

    def __init__(self, gw: Live, tokens: int = 150) -> None:
        self.answers: list[Answer] = []
        self._gw = gw
        self._tokens = tokens
        self._stops: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    def are(self, count: int) -> None:
        """So many clients go on from now on. One that stops ends its stream first."""
        while len(self._stops) < count:
            self._stops.append(asyncio.Event())
            self._tasks.append(asyncio.create_task(self._ask(self._stops[-1])))
        while len(self._stops) > count:
            self._stops.pop().set()

    async def _ask(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.answers.append(await ask(self._gw, self._tokens))

    async def all_were_answered(self) -> None:
        """Once all clients have stopped: each stream was complete."""
        await asyncio.gather(*self._tasks)
        assert self.answers
        assert [answer for answer in self.answers if answer != (200, self._tokens, "[DONE]")] == []
