"""Adapters for engines. To add a kind: one module, one line in `KINDS`, and one in `UNSUPPORTED` if others can do more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp

from backends.ollama import UNSUPPORTED as OLLAMA_UNSUPPORTED
from backends.ollama import OllamaBackend
from backends.openai import OPENAI, VLLM, OpenAIBackend
from router.core.interfaces import Backend
from router.core.types import Candidate, Capability

#: Kind of an instance in the fleet file -> its factory. (`emulated` instances speak one of these.)
KINDS: dict[str, Callable[..., Backend]] = {
    "vllm": partial(OpenAIBackend, VLLM),
    "ollama": OllamaBackend,
    "openai": partial(OpenAIBackend, OPENAI),
}
#: What a kind of engine is known to refuse: such requests go to others. A kind that is not named is asked.
UNSUPPORTED: dict[str, frozenset[Capability]] = {"ollama": OLLAMA_UNSUPPORTED}


def create(
    kind: str,
    *,
    url: str,
    candidates: Sequence[Candidate] = (),
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    ca_file: str | None = None,
    connect_timeout_s: float = 5.0,
    idle_timeout_s: float = 60.0,
    control_timeout_s: float = 5.0,
    session: aiohttp.ClientSession | None = None,
    **settings: Any,
) -> Backend:
    """The backend for one instance.

    `api_key` is sent as a bearer token, `headers` with every request (the operator's, already resolved).
    `ca_file` verifies an https engine in place of the system's authorities. `connect_timeout_s` bounds a
    connection's making, `idle_timeout_s` the silence after the first token, `control_timeout_s` probes and
    scrapes. `session` is used for those and left open; without it the backend makes and closes its own.
    `settings` go to the kind (`keep_alive` for ollama).

    Raises KeyError for an unknown kind, ValueError for a bad url or header, OSError for a bad `ca_file`.
    """
    return KINDS[kind](
        url=url,
        candidates=candidates,
        api_key=api_key,
        headers=headers,
        ca_file=ca_file,
        connect_timeout_s=connect_timeout_s,
        idle_timeout_s=idle_timeout_s,
        control_timeout_s=control_timeout_s,
        session=session,
        **settings,
    )
