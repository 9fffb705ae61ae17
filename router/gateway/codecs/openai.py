"""OpenAI's chats, completions and embeddings: engines speak the same, so streams pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from backends import sse_events
from router.core.errors import Refusal
from router.core.interfaces import Collector
from router.core.raw_json import dumps


class OpenAICodec:
    """Server-sent events and JSON objects of OpenAI's API. With `include_usage` a stream ends with a usage event."""

    stream_type = b"text/event-stream; charset=utf-8"
    body_type = b"application/json"
    adjust = None

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._first_event = b""
        self._usage_event: dict[str, Any] = {}

    @property
    def usage_collector(self) -> Collector | None:
        return self if self._include_usage else None

    def take_event(self, chunk: dict[str, Any], size: int) -> None:
        """Keep the engine's usage event: it may have more members, as llama.cpp's `timings`."""
        del size
        self._usage_event = chunk

    def take_texts(self, field: str, escaped: bytes) -> None:
        """Nothing: a usage event has no text."""

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
            return sse_events.END
        head = next(sse_events.objects(self._first_event), {})
        chunk: dict[str, Any] = {
            name: head[name]
            for name in ("id", "object", "created", "model", "system_fingerprint")
            if name in head
        }
        chunk |= {"choices": [], "usage": usage, "headway": headway}
        others = self._usage_event
        if others.get("id") == head.get("id"):  # not of an attempt that failed
            others.pop("model", None)  # the engine's name of it
            chunk = others | chunk
        return sse_events.event(dumps(chunk)) + sse_events.END

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        answer["headway"] = headway
        return dumps(answer)

    def error(self, refusal: Refusal) -> bytes:
        return openai_error(refusal)

    def stream_error(self, refusal: Refusal) -> bytes:
        return sse_events.event(openai_error(refusal))


#: By status; all others are an `invalid_request_error` of the client, or an `api_error` of the server.
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_object(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(refusal.status)
    if kind is None:
        kind = "invalid_request_error" if refusal.status < 500 else "api_error"
    if refusal.code == "insufficient_quota":
        kind = "insufficient_quota"
    return {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}


def openai_error(refusal: Refusal) -> bytes:
    """OpenAI's error body."""
    return orjson.dumps({"error": error_object(refusal)})
