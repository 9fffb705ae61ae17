"""The properties of one engine kind. `backends.kinds` has the table of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from router.core.interfaces import Backend
from router.core.types import Capability


class KindSettings(BaseModel):
    """The keys under `settings` of an instance in the fleet file. A kind with settings has a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """A kind of engine, the `kind` of the fleet file.

    `adapter` creates the backend of one instance: `adapter(kind, endpoint, **settings)`.
    `health_path` answers a GET with 200 while the engine is healthy.
    `emulator` names the emulated server with the kind's wire format (`backends.emulator.servers`).
    `unsupported` are needs that the engine always refuses: such requests go to other instances.
    `chat_bound` is the field that bounds a chat's output if the client's body has none.
    `tokenizes`: the engine counts a prompt's tokens at `/tokenize`.
    `counts_each`: the engine can report the usage so far in every event (`continuous_usage_stats`).
    `salts_cache`: the engine separates prompts in its prefix cache by `cache_salt`.
    `takes_base_url`: a path of the instance's URL is complete, as in the `base_url` of OpenAI's clients; no `/v1` follows it.
    `uuid_ids`: `x-request-id` is a UUID: the digits of our id, filled up with zeros.
    `fixed_slots`: the engine decodes in the `slots` parallel slots of its profile; other engines batch up to `max_seqs`
    sequences.
    `default_weights` is the format of weights if the fleet file has no quantization.
    `settings` are the keys of `settings` in the fleet file, which the adapter gets as keyword arguments.
    """

    name: str
    adapter: Callable[..., Backend]
    health_path: str
    emulator: str
    unsupported: frozenset[Capability] = frozenset()
    chat_bound: str = "max_tokens"
    tokenizes: bool = False
    counts_each: bool = False
    salts_cache: bool = False
    takes_base_url: bool = False
    uuid_ids: bool = False
    fixed_slots: bool = False
    default_weights: str = "fp16"
    settings: type[KindSettings] = KindSettings

    def check_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """An instance's settings for the adapter. Raises pydantic.ValidationError."""
        return self.settings.model_validate(given).model_dump(exclude_unset=True)
