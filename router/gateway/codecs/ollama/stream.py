"""OpenAI's streams as Ollama's: newline-delimited JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from backends.assemble import merge_tool_call
from backends.engine_numbers import finish_reason as finish_reason_of
from backends.sse_events import EventTemplate, chunk_of, event_template
from router.gateway.codecs.ollama.answer import (
    NS,
    THINKING,
    Endpoint,
    done,
    logprobs_of,
    rfc3339,
    said_by,
    tool_calls_of,
    written,
)

#: Characters at which clients of Python split lines (`str.splitlines`) and that JSON does not escape.
_LINE_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in "\u0085\u2028\u2029"}


def _on_one_line(lines: bytes) -> bytes:
    """Lines with every other line end in them escaped, as Ollama escapes them."""
    if not lines.isascii():
        for character, escape in _LINE_ENDS.items():
            lines = lines.replace(character, escape)
    return lines


class NdjsonStream:
    """Turns a stream's server-sent events into lines of /api/chat or /api/generate.

    `model` is the client's name of the model. Events may be chunks of chats or of completions.
    `clock` gives ns since the epoch.
    """

    __slots__ = ("_calls", "_chat", "_clock", "_finish_reason", "_open", "_second", "_shown", "_template")

    def __init__(self, endpoint: Endpoint, model: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._chat = endpoint != "generate"
        self._clock = clock
        self._open = b'{"model":' + orjson.dumps(model) + b',"created_at":"'
        self._second = -1
        self._shown = b""
        self._template: EventTemplate | None = None
        self._calls: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def feed(self, data: bytes) -> bytes:
        """The lines for complete events; empty for events without text (a role, a part of a tool call).

        Tool calls follow when they are complete. Raises UpstreamError for an event that is not JSON.
        """
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        start = self._start()
        lines: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            template = self._template
            if template is not None and data.startswith(template.head, at):
                pieces, at, foreign = template.read(data, at)
                if pieces:
                    before, after = self._frame(template.field)
                    before = start + before
                    lines += [before + piece + after for piece in pieces if piece]
                if not foreign:
                    continue
            stop = data.find(b"\n\n", at) + 2
            stop = end if stop < 2 else stop
            line = self._event(data[at:stop], start)
            if line:
                lines.append(line)
            at = stop
        return _on_one_line(b"".join(lines))

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any] | None
    ) -> bytes:
        """The last line: `done`, the reason, the six metrics in ns (zeros left out), and the `headway` member.

        `finish_reason` falls back to the one in the stream.
        """
        start = self._start()
        last = done(written(self._chat), usage, finish_reason or self._finish_reason, headway)
        return _on_one_line(self._take_calls(start) + start + b'",' + orjson.dumps(last)[1:] + b"\n")

    def error(self, message: str) -> bytes:
        """The line that ends a stream that failed after its first token. No `done` line follows."""
        return _on_one_line(orjson.dumps({"error": message}) + b"\n")

    def _start(self) -> bytes:
        """The beginning of a line, up to its time: made once for each read."""
        second, rest_ns = divmod(self._clock(), NS)
        if second != self._second:
            self._second = second
            self._shown = rfc3339(second * NS)[:-10].encode()
        return self._open + self._shown + b"%09dZ" % rest_ns

    def _frame(self, field: str) -> tuple[bytes, bytes]:
        thinking = b'","thinking":"' if field in THINKING else b""
        if self._chat:
            return b'","message":{"role":"assistant","content":"' + thinking, b'"},"done":false}\n'
        return b'","response":"' + thinking, b'","done":false}\n'

    def _event(self, event: bytes, start: bytes) -> bytes:
        chunk = chunk_of(event)
        if chunk is None:
            return b""
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return b""
        texts = choice.get("delta")
        if not isinstance(texts, dict):
            texts = choice
        template = event_template(event, choice, texts)
        if template is not None and template.field in ("content", "text", *THINKING):
            self._template = template  # only text is passed on as it is written
            before, after = self._frame(template.field)
            return start + before + event[len(template.head) : len(event) - len(template.tail)] + after
        self._template = None
        content, thinking = said_by(texts)
        line = self._line(start, content, thinking, logprobs_of(choice.get("logprobs")))
        pieces = texts.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else ():
            merge_tool_call(self._calls, piece)
        if choice.get("finish_reason") is not None:
            self._finish_reason = finish_reason_of(choice["finish_reason"])
            line += self._take_calls(start)
        return line

    def _line(self, start: bytes, content: str, thinking: str, logprobs: list[dict[str, Any]]) -> bytes:
        if not (content or thinking or logprobs):
            return b""
        line = written(self._chat, content, thinking)
        if logprobs:
            line["logprobs"] = logprobs
        line["done"] = False
        return start + b'",' + orjson.dumps(line)[1:] + b"\n"

    def _take_calls(self, start: bytes) -> bytes:
        calls, self._calls = tool_calls_of(self._calls), []
        if not calls or not self._chat:
            return b""
        line = written(True, calls=calls) | {"done": False}
        return start + b'",' + orjson.dumps(line)[1:] + b"\n"
