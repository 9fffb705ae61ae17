"""The emulated servers by name, and their common interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ValidationError

from backends.emulator.faults import FaultBoard
from backends.emulator.generation import Generation
from backends.emulator.http import Exchange
from backends.emulator.ollama import OllamaServer
from backends.emulator.vllm import VllmServer
from router.core.profile import EngineProfile


class EngineServer(Protocol):
    """One emulated engine. `profiles` are by served name, `options` is an instance of `OPTIONS`, `clock` drives the engine
    model, in seconds.

    `PORT` is the engine's usual port. `KEEP_ALIVE_S` is how long it keeps an idle connection (None: without limit).
    `CONTEXT_OPTION` is the option that bounds a model's context (None: each request has its own bound).
    """

    OPTIONS: ClassVar[type[BaseModel]]
    PORT: ClassVar[int]
    KEEP_ALIVE_S: ClassVar[float | None]
    CONTEXT_OPTION: ClassVar[str | None]
    healthy: bool
    live: set[Generation]

    def __init__(
        self,
        profiles: Mapping[str, EngineProfile],
        options: Any,
        speed: float,
        faults: FaultBoard,
        clock: Callable[[], float],
    ) -> None: ...

    @staticmethod
    def check(profiles: Mapping[str, EngineProfile], options: Any) -> None:
        """Raises ValueError for models or options with which it cannot start."""

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or later."""

    def state(self) -> dict[str, Any]:
        """The state that tests read."""

    def close(self) -> None: ...


SERVERS: dict[str, type[EngineServer]] = {"vllm": VllmServer, "ollama": OllamaServer}


def first_problem(error: ValidationError) -> str:
    """The first problem of wrong settings, in one clause."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key {key!r}"
    where = f"{key}: " if key else ""
    return f"{where}{first['msg'].replace('Input should', 'must')} (given: {first['input']!r})"
