"""Ollama's generating endpoints: the translations of each path, and the codec of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from backends.assemble import merge_tool_call
from backends.engine_numbers import finish_reason as finish_reason_of
from router.core.errors import Refusal
from router.core.raw_json import dumps
from router.gateway.codecs.codec import THINKING, EventReader, Translated
from router.gateway.codecs.ollama.answer import (
    NS,
    Endpoint,
    at_length_1,
    done,
    embed_from_openai,
    embeddings_from_openai,
    error_body,
    logprobs_of,
    refusal_body,
    rfc3339,
    said_by,
    tool_calls_of,
    written,
)
from router.gateway.codecs.ollama.request import (
    chat_to_openai,
    embed_to_openai,
    embeddings_to_openai,
    generate_to_openai,
)


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


#: Characters at which clients of Python split lines (`str.splitlines`) and that JSON does not escape.
_LINE_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in "\u0085\u2028\u2029"}


def _on_one_line(lines: bytes) -> bytes:
    """Lines with every other line end in them escaped, as Ollama escapes them."""
    if not lines.isascii():
        for character, escape in _LINE_ENDS.items():
            lines = lines.replace(character, escape)
    return lines


class OllamaCodec(EventReader):
    """Newline-delimited JSON of Ollama's API, for one request. `model` is the client's name of the model.

    Events may be chunks of chats or of completions. `clock` gives ns since the epoch.
    """

    stream_type = b"application/x-ndjson"
    body_type = b"application/json; charset=utf-8"
    usage_collector = None
    _text_fields = ("content", "text", *THINKING)

    def __init__(self, endpoint: Endpoint, model: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._endpoint = endpoint
        self._chat = endpoint != "generate"
        self._model = model
        self._clock = clock
        self.adjust = at_length_1 if endpoint == "embed" else None
        self._open = b'{"model":' + orjson.dumps(model) + b',"created_at":"'
        self._second = -1
        self._shown = self._start = b""
        self._calls: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def first(self, data: bytes) -> bytes:
        # An earlier attempt may have failed on its first events.
        self._template, self._calls, self._finish_reason = None, [], None
        return self.events(data)

    def events(self, data: bytes) -> bytes:
        """The lines for complete events; empty for events without text (a role, a part of a tool call).

        Tool calls follow when they are complete. Raises UpstreamError for an event that is not JSON.
        """
        self._start = self._stamp()
        lines: list[bytes] = []
        self._read(data, lines)
        return _on_one_line(b"".join(lines))

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any] | None
    ) -> bytes:
        """The last line: `done`, the reason, the six metrics in ns (zeros left out), and the `headway` member.

        `finish_reason` falls back to the one in the stream.
        """
        self._start = self._stamp()
        last = done(written(self._chat), usage, finish_reason or self._finish_reason, headway)
        return _on_one_line(self._take_calls() + self._line(last))

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any] | None) -> bytes:
        if self._endpoint == "embed":
            return dumps(embed_from_openai(answer, self._model, headway))
        if self._endpoint == "embeddings":
            return dumps(embeddings_from_openai(answer))
        choice: Mapping[str, Any] = (answer.get("choices") or [{}])[0]
        texts: Mapping[str, Any] = choice.get("message") or choice
        calls = tool_calls_of(texts.get("tool_calls") or []) if self._chat else []
        said = written(self._chat, *said_by(texts), calls)
        if logprobs := logprobs_of(choice.get("logprobs")):
            said["logprobs"] = logprobs
        self._start = self._stamp()
        return self._line(done(said, answer.get("usage"), choice.get("finish_reason"), headway))[:-1]

    def loaded(self, reason: str) -> bytes:
        """The answer to a request that only loads or unloads the model: the fleet decides what is loaded."""
        return self.non_streaming({"choices": [{"finish_reason": reason}]}, None)

    def error(self, refusal: Refusal) -> bytes:
        return refusal_body(refusal, self._model)

    def stream_error(self, refusal: Refusal) -> bytes:
        """The line that ends a stream that failed after its first token. No `done` line follows."""
        return _on_one_line(error_body(refusal.message) + b"\n")

    def _stamp(self) -> bytes:
        """The beginning of a line, up to its time: made once for each read."""
        second, rest_ns = divmod(self._clock(), NS)
        if second != self._second:
            self._second = second
            self._shown = rfc3339(second * NS)[:-10].encode()
        return self._open + self._shown + b"%09dZ" % rest_ns

    def _write_texts(self, field: str, pieces: Sequence[bytes], out: list[bytes]) -> None:
        thinking = b'","thinking":"' if field in THINKING else b""
        if self._chat:
            before, after = b'","message":{"role":"assistant","content":"' + thinking, b'"},"done":false}\n'
        else:
            before, after = b'","response":"' + thinking, b'","done":false}\n'
        before = self._start + before
        out += [before + piece + after for piece in pieces if piece]

    def _write_choice(self, choice: dict[str, Any], delta: dict[str, Any] | None, out: list[bytes]) -> None:
        texts = choice if delta is None else delta
        content, thinking = said_by(texts)
        logprobs = logprobs_of(choice.get("logprobs"))
        if content or thinking or logprobs:
            more = {"logprobs": logprobs} if logprobs else {}
            out.append(self._line(written(self._chat, content, thinking) | more | {"done": False}))
        pieces = texts.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else ():
            merge_tool_call(self._calls, piece)
        if choice.get("finish_reason") is not None:
            self._finish_reason = finish_reason_of(choice["finish_reason"])
            out.append(self._take_calls())

    def _line(self, members: Mapping[str, Any]) -> bytes:
        return self._start + b'",' + orjson.dumps(members)[1:] + b"\n"

    def _take_calls(self) -> bytes:
        calls, self._calls = tool_calls_of(self._calls), []
        return self._line(written(True, calls=calls) | {"done": False}) if calls and self._chat else b""
