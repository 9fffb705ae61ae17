"""What is fitted: the constants of an engine profile, and what the client adds; and fitted profiles read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from benchmarks.workloads.format import WorkloadError, checked, reading
from router.core.profile import EngineProfile

#: Constants of a step that are fitted, in seconds.
STEP_CONSTANTS = (
    *("overhead_s", "floor_s", "per_token_s", "per_kv_token_s", "per_pair_s"),
    *("per_token_extra_s", "per_seq_s"),
)
#: What a measurement at the client has on top, once a request: HTTP, tokenisation and network, and what its
#: first token waits for each other stream that the server's front end writes to.
CLIENT_CONSTANTS = ("client_overhead_s", "client_per_stream_s")
CONSTANTS = STEP_CONSTANTS + CLIENT_CONSTANTS
#: Limits that are given, not fitted; where several values are given the fit levels choose.
LIMITS = ("kv_capacity_tokens", "max_batched_tokens", "max_seqs", "block_tokens")
#: Whether the engine cuts prompts into chunks, given and chosen like a limit.
CHUNKED = "chunked_prefill"


@dataclass(frozen=True, slots=True)
class Constants:
    """What a fit finds: the engine's profile and the client's own time in seconds."""

    profile: EngineProfile
    client_overhead_s: float
    client_per_stream_s: float

    def client_s(self, streams: int) -> float:
        """What the client measures beyond the engine, with so many streams open at the first token."""
        return self.client_overhead_s + streams * self.client_per_stream_s

    def logs(self) -> list[float]:
        """Natural logarithms of CONSTANTS, in their order."""
        return [
            math.log(getattr(self.profile if name in STEP_CONSTANTS else self, name)) for name in CONSTANTS
        ]

    def with_logs(self, logs: list[float]) -> Constants:
        """The same limits with other constants."""
        values = dict(zip(CONSTANTS, map(math.exp, logs), strict=True))
        step: dict[str, Any] = {name: values[name] for name in STEP_CONSTANTS}
        return Constants(replace(self.profile, **step), *(values[name] for name in CLIENT_CONSTANTS))

    def with_limits(self, limits: Mapping[str, int]) -> Constants:
        """The same constants with other limits."""
        values: dict[str, Any] = dict(limits)
        return replace(self, profile=replace(self.profile, **values))


def as_dict(constants: Constants) -> dict[str, Any]:
    """`{"profile": {...}, client constants}`, four digits of each fitted one."""
    profile = {each.name: getattr(constants.profile, each.name) for each in fields(constants.profile)}
    return {
        "profile": {
            name: _rounded(value) if name in STEP_CONSTANTS else value for name, value in profile.items()
        },
        **{name: _rounded(getattr(constants, name)) for name in CLIENT_CONSTANTS},
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# --- reading -------------------------------------------------------------------------------------------
def _known(given: Any) -> Any:
    unknown = (
        set(given) - {field.name for field in fields(EngineProfile)} if isinstance(given, dict) else set()
    )
    if unknown:
        raise PydanticCustomError("unknown", "unknown constant {name}", {"name": min(unknown)})
    return given


class _Fitted(BaseModel):
    """One engine; what its clients add is not read. YAML takes `1e-9` for a text, and pydantic reads it as a number."""

    profile: Annotated[EngineProfile, BeforeValidator(_known)]


_ENGINES = TypeAdapter(dict[str, _Fitted])


def read_profiles(path: Path) -> dict[str, EngineProfile]:
    """The profiles of a `profile.yaml`, by their names. Raises WorkloadError in one line."""
    try:
        with reading(path):
            text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError):
        raise WorkloadError(f"{path}: not YAML") from None
    where = f"{path}: not profiles as headway calibrate writes them"
    found = checked(_ENGINES.validate_python, data, where)
    return {each.profile.name: each.profile for each in found.values()}
