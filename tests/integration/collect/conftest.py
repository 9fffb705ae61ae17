"""Emulated engines that run beside the test: on a thread and an event loop of their own, on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from backends.emulator.instance import EmulatedInstance
from tests.integration.gateway.live import ollama, vllm


class Engines:
    """Starts emulated engines; all are stopped with the test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._started: list[EmulatedInstance] = []

    def vllm(self, name: str, model: str = "llama-3.1-8b", **settings: Any) -> EmulatedInstance:
        return self._start(vllm(name, model, **settings))

    def ollama(self, name: str, *models: str, **settings: Any) -> EmulatedInstance:
        return self._start(ollama(name, *models, **settings))

    def _start(self, engine: EmulatedInstance) -> EmulatedInstance:
        asyncio.run_coroutine_threadsafe(engine.start(), self._loop).result(10)
        self._started.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._started:
            asyncio.run_coroutine_threadsafe(engine.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()


@pytest.fixture
def engines() -> Iterator[Engines]:
    started = Engines()
    yield started
    started.close()
