"""The codec of the Responses API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from router.core.errors import Refusal
from router.core.raw_json import dumps
from router.gateway.codecs.codec import Translated
from router.gateway.codecs.openai.errors import error_object
from router.gateway.codecs.responses.answer import non_streaming_response
from router.gateway.codecs.responses.request import renamed
from router.gateway.codecs.responses.stream import ResponsesStream


class ResponsesCodec:
    """Responses and their events, for one request that goes to an engine as a chat."""

    stream_type = b"text/event-stream; charset=utf-8"
    body_type = b"application/json"
    adjust = None
    usage_collector = None

    def __init__(self, request: Translated, request_id: str) -> None:
        model = request.body.get("model")
        self._model = model if isinstance(model, str) else ""
        self._ids = request_id.removeprefix("req_")  # what the ids of a response and its items share
        self._echo = request.echo
        self._created_at = int(time.time())
        self._stream = ResponsesStream(self._ids, self._model, self._echo)

    def first(self, data: bytes) -> bytes:
        # A new stream: an earlier attempt may have failed on its first events.
        self._stream = ResponsesStream(self._ids, self._model, self._echo)
        return self._stream.start(data)

    def events(self, data: bytes) -> bytes:
        return self._stream.feed(data)

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        return self._stream.finish(usage, finish_reason, headway)

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        model = headway["model"]
        response = non_streaming_response(
            answer, self._ids, model, self._created_at, int(time.time()), self._echo
        )
        return dumps(response | {"headway": headway})

    def error(self, refusal: Refusal) -> bytes:
        return orjson.dumps({"error": self._error(refusal)})

    def stream_error(self, refusal: Refusal) -> bytes:
        return self._stream.error(self._error(refusal))

    @staticmethod
    def _error(refusal: Refusal) -> dict[str, Any]:
        """The error object, with this API's name of the field."""
        error = error_object(refusal)
        return error | {"param": renamed(error["param"])}
