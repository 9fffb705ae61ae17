"""The models of an emulated Ollama: what it reports about them (/api/tags, /api/ps and /api/show), and the requests that wait
until one is in memory in the form that they need.

Sizes come from the profile; without one they are estimated from the model's name (a 4-bit quantisation takes about 0.57
bytes a parameter).

A *variant* is a model with load-time options. A request for another variant of a loaded model waits until the running
requests have ended and that model is unloaded; later requests wait behind it, as in Ollama's own queue.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from backends.emulator.driver import Driver
from backends.emulator.generation import Generation
from backends.emulator.ollama_request import Options, full_name, shown_name
from backends.engine.slots import SlotEngine
from router.core.profile import EngineProfile

_BYTES_PER_PARAMETER = 0.57
_FAMILIES = ("llama", "qwen2", "qwen", "mistral", "gemma", "phi", "deepseek")
#: Go's longest duration: what "never" becomes in `expires_at`.
_LONGEST = timedelta(microseconds=(2**63 - 1) / 1000)


def rfc3339(at: datetime) -> str:
    """A UTC time as Ollama writes it."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Entry:
    """One installed model; `context_tokens` is its trained context."""

    name: str
    context_tokens: int
    modified_at: datetime
    weights_bytes: int | None = None
    quantization: str | None = None

    @property
    def parameters(self) -> float:
        """The number of parameters in the name ("8b"); 7 billion if the name has none."""
        found = re.search(r"(\d+(?:\.\d+)?)b\b", self.name.lower())
        return float(found[1]) * 1e9 if found else 7e9

    @property
    def size_bytes(self) -> int:
        if self.weights_bytes is not None:
            return self.weights_bytes
        return int(self.parameters * _BYTES_PER_PARAMETER)

    @property
    def family(self) -> str:
        lower = self.name.lower()
        return next((family for family in _FAMILIES if family in lower), "llama")

    @property
    def digest(self) -> str:
        return sha256(f"headway-emulator/{self.name}".encode()).hexdigest()

    def details(self) -> dict[str, Any]:
        return {
            "parent_model": "",
            "format": "gguf",
            "family": self.family,
            "families": [self.family],
            "parameter_size": f"{self.parameters / 1e9:.1f}B",
            "quantization_level": self.quantization or "F16",
        }

    def tag(self) -> dict[str, Any]:
        """The model's entry in /api/tags."""
        shown = shown_name(self.name)
        return {
            "name": shown,
            "model": shown,
            "modified_at": rfc3339(self.modified_at),
            "size": self.size_bytes,
            "digest": self.digest,
            "details": self.details(),
        }

    def running(self, expires_in_s: float, context_tokens: int) -> dict[str, Any]:
        """The model's entry in /api/ps."""
        shown = shown_name(self.name)
        left = _LONGEST if math.isinf(expires_in_s) else timedelta(seconds=expires_in_s)
        return {
            "name": shown,
            "model": shown,
            "size": self.size_bytes,
            "digest": self.digest,
            "details": self.details(),
            "expires_at": rfc3339(datetime.now(UTC) + left),
            "size_vram": self.size_bytes,
            "context_length": context_tokens,
        }

    def show(self) -> dict[str, Any]:
        """The answer of /api/show."""
        family = self.family
        return {
            "license": "This is an emulated model: there are no weights.",
            "modelfile": f"# headway-emulator\nFROM {shown_name(self.name)}\n",
            "parameters": "",
            "template": "{{ .Prompt }}",
            "details": self.details(),
            "model_info": {
                "general.architecture": family,
                "general.parameter_count": int(self.parameters),
                f"{family}.context_length": self.context_tokens,
                f"{family}.embedding_length": 4096,
                f"{family}.block_count": 32,
            },
            "capabilities": ["completion", "tools", "embedding"],
            "modified_at": rfc3339(self.modified_at),
        }


@dataclass(slots=True)
class Model:
    """An installed model. `names` are those under which a request may set a length. `num_ctx` is the default context of
    each of its `slots`, `requested` the variant that was requested last."""

    entry: Entry
    profile: EngineProfile
    names: list[str]
    slots: int
    num_ctx: int
    requested: str | None = None


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
        variant = f"{full_name(model.entry.name)}\n{context}\n{options.load!r}"
        if variant not in self._engine.profiles:
            profile = replace(model.profile, kv_capacity_tokens=context * model.slots)
            self._engine.profiles[variant] = profile
            self._engine.model_bytes[variant] = model.entry.size_bytes
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
