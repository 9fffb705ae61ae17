"""Emulated engines that run beside the test: on a thread and an event loop of their own, on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from backends.emulator.instance import EmulatedInstance
from tests.integration.gateway.live import ollama, vllm
from tests.servers.loop_thread import loop_thread


class Engines:
    """Starts emulated engines; all are stopped with the test."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run = run
        self._started: list[EmulatedInstance] = []

    def vllm(self, name: str, model: str = "llama-3.1-8b", **settings: Any) -> EmulatedInstance:
        return self._start(vllm(name, model, **settings))

    def ollama(self, name: str, *models: str, **settings: Any) -> EmulatedInstance:
        return self._start(ollama(name, *models, **settings))

    def _start(self, engine: EmulatedInstance) -> EmulatedInstance:
        self._run(engine.start())
        self._started.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._started:
            self._run(engine.stop())


@pytest.fixture
def engines() -> Iterator[Engines]:
    with loop_thread() as run:
        started = Engines(run)
        yield started
        started.close()
