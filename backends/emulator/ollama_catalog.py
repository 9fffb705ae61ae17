"""What an Ollama server reports about its models: /api/tags, /api/ps and /api/show.

Sizes come from the profile; without one they are estimated from the model's name (a 4-bit quantisation takes about 0.57
bytes a parameter).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from backends.ollama import tagged
from router.core.profile import EngineProfile

_BYTES_PER_PARAMETER = 0.57
_FAMILIES = ("llama", "qwen2", "qwen", "mistral", "gemma", "phi", "deepseek")
#: Go's longest duration: what "never" becomes in `expires_at`.
_LONGEST = timedelta(microseconds=(2**63 - 1) / 1000)


def rfc3339(at: datetime) -> str:
    """A UTC time as Ollama writes it."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Model:
    """One installed model. `names` are those under which a request may set a length. `context_tokens` is its trained context,
    `num_ctx` the default one of each of its `slots`, `requested` the variant (`ollama_loading`) that was requested last."""

    name: str
    profile: EngineProfile
    names: list[str]
    slots: int
    num_ctx: int
    weights_bytes: int | None
    quantization: str | None
    modified_at: datetime = field(default_factory=partial(datetime.now, UTC))
    requested: str | None = None

    @property
    def context_tokens(self) -> int:
        return min(131_072, self.profile.kv_capacity_tokens)

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
        shown = tagged(self.name)
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
        shown = tagged(self.name)
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
            "modelfile": f"# headway-emulator\nFROM {tagged(self.name)}\n",
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
