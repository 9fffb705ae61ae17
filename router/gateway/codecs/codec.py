"""How each API speaks: OpenAI's on /v1, Ollama's on /api. The relay knows only this interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson

from router.core.errors import Refusal
from router.core.raw_json import dumps
from router.gateway.codecs.assemble import event_payload, parse_event

_DONE = b"data: [DONE]\n\n"
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiCodec(Protocol):
    """One request's way back to its client. `adjust` changes an answer in one piece before it is written, in steps where it
    may be large."""

    stream_type: bytes
    body_type: bytes

    @property
    def adjust(self) -> Callable[[dict[str, Any]], Awaitable[None]] | None: ...

    def first(self, data: bytes) -> bytes:
        """The first bytes of a stream, from whole OpenAI events."""
        ...

    def events(self, data: bytes) -> bytes:
        """What to send for further whole OpenAI events."""
        ...

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        """The end of a stream."""
        ...

    def whole(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        """A non-streaming answer, from an OpenAI object with its usage."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """The body of an error response."""
        ...

    def stream_error(self, refusal: Refusal) -> bytes:
        """The end of a stream that failed after its 200."""
        ...


def error_object(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(refusal.status, "api_error")
    if refusal.code == "insufficient_quota":
        kind = "insufficient_quota"
    return {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}


def openai_error(refusal: Refusal) -> bytes:
    """OpenAI's error body."""
    return orjson.dumps({"error": error_object(refusal)})


class OpenAICodec:
    """Server-sent events and JSON objects as OpenAI's API has them; upstream events pass unchanged."""

    stream_type = b"text/event-stream; charset=utf-8"
    body_type = b"application/json"
    adjust = None

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._first_event = b""

    def first(self, data: bytes) -> bytes:
        if self._include_usage:
            self._first_event = data
        return data

    def events(self, data: bytes) -> bytes:
        return data

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        if not self._include_usage:
            return _DONE
        head = _first_json(self._first_event)
        chunk: dict[str, Any] = {
            name: head[name]
            for name in ("id", "object", "created", "model", "system_fingerprint")
            if name in head
        }
        chunk |= {"choices": [], "usage": usage, "headway": headway}
        return b"data: " + orjson.dumps(chunk) + b"\n\n" + _DONE

    def whole(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        answer["headway"] = headway
        return dumps(answer)

    def error(self, refusal: Refusal) -> bytes:
        return openai_error(refusal)

    def stream_error(self, refusal: Refusal) -> bytes:
        return b"data: " + openai_error(refusal) + b"\n\n"


def _first_json(events: bytes) -> dict[str, Any]:
    for event in events.split(b"\n\n"):
        payload = event_payload(event)
        if payload is not None:
            return parse_event(payload)
    return {}
