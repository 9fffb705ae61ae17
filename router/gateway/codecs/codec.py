"""How each API speaks: OpenAI's on /v1, Ollama's on /api. The relay knows only this interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from router.core.errors import Refusal


class ApiCodec(Protocol):
    """Writes the answer of one request in the client's API. `adjust` changes a non-streaming answer before it is
    written; the event loop runs in between where the answer may be large."""

    stream_type: bytes
    body_type: bytes

    @property
    def adjust(self) -> Callable[[dict[str, Any]], Awaitable[None]] | None: ...

    def first(self, data: bytes) -> bytes:
        """The first bytes of a stream, from complete OpenAI events."""
        ...

    def events(self, data: bytes) -> bytes:
        """The bytes for further complete OpenAI events."""
        ...

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        """The end of a stream."""
        ...

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        """A non-streaming answer, from an OpenAI object with its usage."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """The body of an error response."""
        ...

    def stream_error(self, refusal: Refusal) -> bytes:
        """The end of a stream that failed after its 200."""
        ...
