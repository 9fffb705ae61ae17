"""One request between its client and the relay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.core.types import Request
from router.gateway.codecs.codec import ApiCodec
from router.gateway.keys.reservation import KeyReservation
from router.gateway.relay.answer import length_event
from router.store.records import RequestRecord


@dataclass(slots=True)
class Exchange:
    """What the client sent and how to answer it.

    `api` is "chat", "completions" or "embeddings"; `body` is OpenAI-shaped, without `routing`. `headers` are extra response
    headers, `reservation` is what it has taken of its key's limits (None: no key).
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
        """The event that ends an answer which the router cut."""
        return length_event(self.api, model, self.request)
