"""Ollama's generating endpoints: the translations of each path, and the codec of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router.core.errors import Refusal
from router.core.raw_json import dumps
from router.gateway.codecs.codec import Translated
from router.gateway.codecs.ollama.answer import Endpoint, loaded, non_streaming
from router.gateway.codecs.ollama.catalog import refusal_body
from router.gateway.codecs.ollama.embeddings import at_length_1, embed_from_openai, embeddings_from_openai
from router.gateway.codecs.ollama.request import (
    chat_to_openai,
    embed_to_openai,
    embeddings_to_openai,
    generate_to_openai,
)
from router.gateway.codecs.ollama.stream import NdjsonStream


@dataclass(frozen=True, slots=True)
class OllamaRoute:
    """A path of Ollama's API. `name` is the `api` of records."""

    endpoint: Endpoint
    name: str
    translate: Callable[[dict[str, Any]], Translated]


OLLAMA_ROUTES = {
    "/api/chat": OllamaRoute("chat", "ollama.chat", chat_to_openai),
    "/api/generate": OllamaRoute("generate", "ollama.generate", generate_to_openai),
    "/api/embed": OllamaRoute("embed", "ollama.embed", embed_to_openai),
    "/api/embeddings": OllamaRoute("embeddings", "ollama.embeddings", embeddings_to_openai),
}


class OllamaCodec:
    """Newline-delimited JSON of Ollama's API, for one request. `model` is the client's name of the model."""

    stream_type = b"application/x-ndjson"
    body_type = b"application/json; charset=utf-8"
    usage_collector = None

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self.adjust = at_length_1 if endpoint == "embed" else None
        self._lines = NdjsonStream(endpoint, model)

    def first(self, data: bytes) -> bytes:
        # A new stream: an earlier attempt may have failed on its first events.
        self._lines = NdjsonStream(self._endpoint, self._model)
        return self._lines.feed(data)

    def events(self, data: bytes) -> bytes:
        return self._lines.feed(data)

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        return self._lines.finish(usage, finish_reason, headway)

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        if self._endpoint == "embed":
            return dumps(embed_from_openai(answer, self._model, headway))
        if self._endpoint == "embeddings":
            return dumps(embeddings_from_openai(answer))
        return orjson.dumps(non_streaming(self._endpoint, self._model, answer, headway))

    def error(self, refusal: Refusal) -> bytes:
        return refusal_body(refusal, self._model)

    def stream_error(self, refusal: Refusal) -> bytes:
        return self._lines.error(refusal.message)


def load_answer(route: OllamaRoute, translated: Translated) -> bytes:
    """The answer to a request that only loads or unloads a model: the fleet decides what is loaded."""
    model = translated.body["model"]
    if route.endpoint == "embed":
        return orjson.dumps(embed_from_openai({}, model, None))
    if route.endpoint == "embeddings":
        return orjson.dumps(embeddings_from_openai({}))
    return orjson.dumps(loaded(route.endpoint, model, translated.load or "load"))
