"""OpenAI's chats, completions and embeddings: engines speak the same, so streams pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from router.core.errors import Refusal
from router.core.raw_json import dumps
from router.gateway.codecs.openai.errors import openai_error
from router.gateway.codecs.openai.events import event_payload, parse_event

_DONE = b"data: [DONE]\n\n"


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
