"""The table of engine kinds. A new kind is one module with its `EngineKind`, and one line here."""

from __future__ import annotations

from typing import Any

from backends.endpoint import Endpoint
from backends.kind import EngineKind
from backends.ollama import OLLAMA
from backends.openai import OPENAI
from backends.vllm import VLLM
from router.core.interfaces import Backend

#: Every kind of engine by its name in the fleet file. An `emulated` instance uses the protocol of one of these.
KINDS: dict[str, EngineKind] = {
    each.name: each
    for each in (
        VLLM,
        OLLAMA,
        OPENAI,
    )
}


def create(kind: str, *, settings: dict[str, Any] | None = None, **endpoint: Any) -> Backend:
    """The backend of one instance: `endpoint` are the fields of `Endpoint`, `settings` those of the kind.

    Raises KeyError for an unknown kind, pydantic.ValidationError (a ValueError) for wrong settings, ValueError
    for a bad url or header, OSError for a bad `ca_file`.
    """
    record = KINDS[kind]
    return record.adapter(record, Endpoint(**endpoint), **record.check_settings(settings or {}))
