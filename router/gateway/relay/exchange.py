"""One request between its client and the relay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from backends import sse_events
from router.compiled import compiled_init
from router.core.types import Request
from router.gateway.codecs.codec import ApiCodec
from router.gateway.keys.reservation import KeyReservation
from router.store.records import RequestRecord


@compiled_init
@dataclass(slots=True)
class Exchange:
    """What the client sent and how to answer it.

    `api` is "chat", "completions" or "embeddings"; `body` is OpenAI-shaped, without `routing`, and empty from the first bytes
    of a streamed answer on. `headers` are extra response headers, `reservation` is what it has taken of its key's limits
    (None: no key).
    """

    api: str
    body: Mapping[str, Any]
    codec: ApiCodec
    request: Request
    record: RequestRecord
    headers: list[tuple[bytes, bytes]]
    reservation: KeyReservation | None = None

    @property
    def wants_each_usage(self) -> bool:
        """Whether the client itself asked for the usage so far in each event."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("continuous_usage_stats") is True

    def length_event(self, model: str) -> bytes:
        """The event that ends every choice of an answer which the router cut at its bound."""
        chat, request = self.api == "chat", self.request
        said: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        chunk = {
            "id": request.id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {"index": index, **said, "finish_reason": "length"} for index in range(request.choices)
            ],
        }
        return sse_events.event(orjson.dumps(chunk))
