"""The models of an emulated Ollama, and the requests that wait until one is in memory in the form that they need.

A *variant* is a model with load-time options. A request for another variant of a loaded model waits until the running
requests have ended and that model is unloaded; later requests wait behind it, as in Ollama's own queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NamedTuple

from backends.emulator.driver import Driver
from backends.emulator.generation import Generation
from backends.emulator.ollama_catalog import Model
from backends.emulator.ollama_request import Options
from backends.engine.slots import SlotEngine
from backends.ollama import local_name


class _Held(NamedTuple):
    generation: Generation
    model: Model
    variant: str


class LoadQueue:
    """Launches requests in order of arrival, each when its variant is in memory or may be loaded."""

    def __init__(self, engine: SlotEngine, driver: Driver) -> None:
        self._engine = engine
        self._driver = driver
        self._held: deque[_Held] = deque()
        self._launched: dict[Generation, str] = {}
        self._releasing = False
        driver.on_progress = self._release

    def __len__(self) -> int:
        return len(self._held)

    def variant(self, model: Model, options: Options) -> tuple[str, int]:
        """The engine's name for the model with these load-time options, and the context of its slots."""
        most = model.profile.kv_capacity_tokens // model.slots
        context = min(options.num_ctx or model.num_ctx, most)
        variant = f"{local_name(model.name)}\n{context}\n{options.load!r}"
        if variant not in self._engine.profiles:
            profile = replace(model.profile, kv_capacity_tokens=context * model.slots)
            self._engine.profiles[variant] = profile
            self._engine.model_bytes[variant] = model.size_bytes
        return variant, context

    def add(self, generation: Generation, model: Model, variant: str) -> None:
        """Launch a request, now or when its variant may be loaded."""
        self._held.append(_Held(generation, model, variant))
        self._driver.touch()

    def ended(self, generation: Generation) -> None:
        """A request has ended, launched or not."""
        self._launched.pop(generation, None)

    def clear(self) -> None:
        """Forget the requests that wait."""
        self._held.clear()

    def _release(self) -> None:
        if self._releasing:
            return
        self._releasing = True
        try:
            while self._held:
                generation, model, variant = self._held[0]
                if not generation.ended and self._must_wait(model, variant):
                    return
                self._held.popleft()
                if not generation.ended:
                    model.requested = variant
                    self._launched[generation] = variant
                    generation.launch()
        finally:
            self._releasing = False

    def _must_wait(self, model: Model, variant: str) -> bool:
        other = model.requested
        if other is None or other == variant:
            return False
        now = self._driver.reached
        self._engine.unload(other, now)
        if self._engine.loading == other or other in self._launched.values():
            return True
        return any(loaded.model == other for loaded in self._engine.loaded(now))
