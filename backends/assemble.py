# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""Assembles the events of a stream into the answer of a request that did not ask for streaming.

Runs of events that differ in one string only are not parsed (`EventTemplate`): their escaped strings are joined and
decoded at once. All other events are parsed and merged in full, so the result is the same either way.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Literal

import orjson

from backends.bounded_json import without_halves
from router.core.errors import AnswerTooLarge, UpstreamError

from .engine_numbers import finish_reason
from .sse_events import EventTemplate, chunk_of, event_template

Api = Literal["chat", "completions"]

MAX_TOOL_CALLS = 256
MAX_ARGUMENTS_CHARS = 1 << 19
#: Of all tool calls of an answer, which are parsed at once.
MAX_ALL_ARGUMENTS_CHARS = 1 << 20
#: Of an answer: its events, and its text, which stays in memory and is written at once. Of events with more than text
#: one half counts as text.
MAX_ANSWER_BYTES = 1 << 26
MAX_TEXT_BYTES = 1 << 24
_FOLD_BYTES = 1 << 16  # raw events are kept up to this size, then merged
_COMPLETION_TEXTS = frozenset({"text", "reasoning", "reasoning_content"})
_AUDIO_PIECES = ("data", "transcript")
#: The text of a block of OpenRouter's `reasoning_details`, by its type.
_DETAIL_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}
_CALL_NAMES = frozenset({"index", "id", "type"})
_FIRST_KEPT = frozenset({"id", "created", "model"})  # the first value wins; of other fields the last


def _decoded(escaped: bytes) -> str:
    json = b'"' + escaped + b'"'
    try:
        text: str = orjson.loads(json)
    except orjson.JSONDecodeError:
        try:
            text = orjson.loads(without_halves(json))
        except orjson.JSONDecodeError:
            raise UpstreamError("the engine sent an event that is not JSON") from None
    return text


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UpstreamError("the engine sent an event of an unknown shape")
    return value


class Assembler:
    """Collects the events of one stream.

    `feed` takes server-sent events in OpenAI's shape (`Batch.data`); as a `router.core.interfaces.Collector` it takes those
    that an adapter has parsed. `result` returns the `chat.completion` or
    `text_completion` object; the caller adds `usage`. Raises UpstreamError for an event that is not JSON or is an error.
    """

    __slots__ = (
        "_bytes",
        "_chat",
        "_choices",
        "_escaped",
        "_parts",
        "_pending_bytes",
        "_sink",
        "_template",
        "_text_bytes",
        "_texts",
        "_top",
    )

    def __init__(self, api: Api) -> None:
        self._chat = api == "chat"
        self._parts: list[bytes] = []
        self._pending_bytes = self._bytes = self._text_bytes = 0
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._template: EventTemplate | None = None
        self._sink: list[str] = []
        self._escaped: list[bytes] = []  # strings that belong there, in JSON's escapes
        self._texts: dict[str, list[str]] = {}  # of the choice that the last event was about

    def feed(self, data: bytes) -> None:
        """Add bytes of events. They are parsed later: when many have come, and in `result`. Raises AnswerTooLarge."""
        self._parts.append(data)
        self._pending_bytes += len(data)
        self._bytes += len(data)
        if self._bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLarge("the engine's answer is too large")
        if self._pending_bytes > _FOLD_BYTES:
            self._fold(last=False)

    def result(self) -> dict[str, Any]:
        """The answer so far."""
        self._flush()
        self._fold(last=True)
        top = self._top
        answer: dict[str, Any] = {
            "id": top.get("id"),
            "object": "chat.completion" if self._chat else "text_completion",
            "created": top.get("created"),
            "model": top.get("model"),
            "choices": [choice.result(self._chat) for _, choice in sorted(self._choices.items())],
        }
        for name, value in top.items():
            answer.setdefault(name, value)
        return answer

    def _fold(self, *, last: bool) -> None:
        raw = b"".join(self._parts)
        if not raw:
            return
        if b"\r" in raw:  # always a line end: JSON escapes it in strings
            raw = raw.replace(b"\r\n", b"\n")
        end = len(raw)
        if last:
            raw = raw if raw.endswith(b"\n\n") else raw + b"\n\n"
            end = len(raw)
            self._parts.clear()
        else:
            end = raw.rfind(b"\n\n") + 2 if b"\n\n" in raw else 0
            self._parts[:] = [raw[end:]]
        self._pending_bytes = len(self._parts[0]) if self._parts else 0
        at = 0
        while at < end:
            if self._template is not None and raw.startswith(self._template.head, at):
                pieces, at, foreign = self._template.read(raw, at)
                if pieces:
                    self._add_text(b"".join(pieces))
                if not foreign:
                    continue
            stop = raw.find(b"\n\n", at) + 2
            self._event(raw[at:stop])
            at = stop

    def _add_text(self, escaped: bytes) -> None:
        self._count(len(escaped))
        self._sink.append(_decoded(escaped))

    def _event(self, event: bytes) -> None:
        self._count(len(event) // 2)
        self._template = None
        chunk = chunk_of(event)
        if chunk is None:
            return
        part = self._merge(chunk)
        if part is not None:
            self._template = event_template(
                event, part, _object(part.get("delta") or {}) if self._chat else part
            )
            if self._template is not None:
                self._sink = self._texts.setdefault(self._template.field, [])

    def take_event(self, chunk: dict[str, Any], size: int) -> None:
        """Add an event that is parsed already."""
        self._flush()
        self._count(size // 2)
        self._merge(chunk)

    def take_texts(self, field: str, escaped: bytes) -> None:
        """Add further events that differ from the last one in this string only."""
        if not self._escaped:
            self._sink = self._texts.setdefault(field, [])
        self._count(len(escaped))
        self._escaped.append(escaped)

    def _flush(self) -> None:
        """Decode the strings since the last event together: a character may be split between two of them."""
        if self._escaped:
            escaped = b"".join(self._escaped)
            self._escaped.clear()
            self._sink.append(_decoded(escaped))

    def _count(self, size: int) -> None:
        self._text_bytes += size
        if self._text_bytes > MAX_TEXT_BYTES:
            raise UpstreamError("the engine's answer is too large")

    def _merge(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Merge an event; its choice, if it has only one."""
        choices = chunk.pop("choices", None) or []
        chunk.pop("usage", None)
        top = self._top
        if not top:
            self._top = chunk
        elif chunk != top:
            for name, value in chunk.items():
                if value is not None and (name not in _FIRST_KEPT or name not in top):
                    top[name] = value
        if not isinstance(choices, list):
            raise UpstreamError("the engine sent an event of an unknown shape")
        for one in choices:
            part = _object(one)
            index = part.get("index") or 0
            if not isinstance(index, int):
                raise UpstreamError("the engine sent an event of an unknown shape")
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice(index)
            texts = _object(part.get("delta") or {}) if self._chat else part
            self._texts = choice.texts
            choice.take(part, texts, self._chat)
        return part if len(choices) == 1 else None


class _Choice:
    """One choice of the answer, so far."""

    __slots__ = (
        "audio",
        "calls",
        "extra",
        "finish_reason",
        "function_call",
        "index",
        "logprobs",
        "message",
        "texts",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.texts: dict[str, list[str]] = {}
        self.message: dict[str, Any] = {}
        self.audio: dict[str, list[str]] = {}
        self.calls: list[dict[str, Any]] = []
        self.function_call: dict[str, Any] | None = None
        self.logprobs: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.extra: dict[str, Any] = {}

    def take(self, part: dict[str, Any], texts: dict[str, Any], chat: bool) -> None:
        for name, value in part.items():
            if value is None or name == "index" or name == "delta":  # noqa: PLR1714 (half the time)
                continue
            if name == "finish_reason":
                self.finish_reason = finish_reason(value)
            elif name == "logprobs":
                self.logprobs = _merged(self.logprobs, value)
            elif name in _COMPLETION_TEXTS and not chat and isinstance(value, str):
                self.texts.setdefault(name, []).append(value)
            else:
                self.extra[name] = _merged(self.extra.get(name), value)
        if chat:
            for name, value in texts.items():
                self._take_delta(name, value)

    def _take_delta(self, name: str, value: Any) -> None:
        if value is None:
            return
        if name == "role":
            self.message.setdefault("role", value)
        elif isinstance(value, str):
            self.texts.setdefault(name, []).append(value)
        elif name == "content" and isinstance(value, list):
            self._add_parts(value)
        elif name == "tool_calls" and isinstance(value, list):
            for piece in value:
                merge_tool_call(self.calls, piece)
        elif name == "function_call":
            if self.function_call is None:
                self.function_call = {"name": "", "arguments": ""}
            _merge_strings(self.function_call, _object(value))
        elif name == "audio" and isinstance(value, dict):
            for part in _AUDIO_PIECES:
                if isinstance(value.get(part), str):
                    self.audio.setdefault(part, []).append(value.pop(part))
            self.message[name] = _merged(self.message.get(name), value)
        else:
            self.message[name] = _merged(self.message.get(name), value)

    def _add_parts(self, parts: list[Any]) -> None:
        """Add a list of parts to the content, after the text so far: Mistral's API sends reasoning so."""
        content = self.message.setdefault("content", [])
        if not isinstance(content, list):
            raise UpstreamError("the engine sent an event of an unknown shape")
        pieces = self.texts.get("content")
        if pieces:
            text = "".join(pieces)
            pieces.clear()
            if text:
                content.append({"type": "text", "text": text})
        content += parts

    def result(self, chat: bool) -> dict[str, Any]:
        joined = {name: "".join(pieces) for name, pieces in self.texts.items()}
        if not chat:
            return {
                "index": self.index,
                "text": joined.pop("text", ""),
                **joined,
                "logprobs": self.logprobs,
                "finish_reason": self.finish_reason,
                **self.extra,
            }
        if self.audio:
            spoken = {name: "".join(pieces) for name, pieces in self.audio.items()}
            self.message["audio"] = {**self.message.get("audio", {}), **spoken}
        if isinstance(details := self.message.get("reasoning_details"), list):
            self.message["reasoning_details"] = _joined_details(details)
        content = joined.pop("content", None)
        parts = self.message.get("content")
        if content and isinstance(parts, list):
            parts.append({"type": "text", "text": content})
        refusal = joined.pop("refusal", None) or None
        if not content and (self.calls or self.function_call or refusal):
            content = None
        message: dict[str, Any] = {
            "role": self.message.pop("role", "assistant"),
            "content": content,
            "refusal": refusal,
            **joined,
            **self.message,
        }
        if self.calls:
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"}
                for call in sorted(self.calls, key=lambda call: call["index"])
            ]
        if self.function_call is not None:
            message["function_call"] = self.function_call
        return {
            "index": self.index,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
            **self.extra,
        }


def _merged(old: Any, new: Any) -> Any:
    """Two values of one field: lists are joined, objects merged member by member, otherwise the last wins."""
    if isinstance(old, list) and isinstance(new, list):
        old += new  # in place: copying the list for each event would take quadratic time
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in new.items():
            if value is not None:
                old[name] = _merged(old.get(name), value)
        return old
    return new


def _block_of(piece: Any) -> tuple[str, int] | None:
    """What the pieces of one block of text have in common; None for anything else."""
    if not isinstance(piece, dict) or not isinstance(index := piece.get("index"), int):
        return None
    field = _DETAIL_TEXTS.get(str(piece.get("type")))
    return (field, index) if field and isinstance(piece.get(field) or "", str) else None


def _joined_details(details: list[Any]) -> list[Any]:
    """OpenRouter's `reasoning_details` with each block of text in one piece."""
    blocks: list[Any] = []
    for block, pieces in groupby(details, _block_of):
        if block is None:
            blocks += pieces
            continue
        field, texts = block[0], []
        whole: dict[str, Any] = {}
        for piece in pieces:
            texts.append(piece.get(field) or "")
            whole |= {name: value for name, value in piece.items() if value is not None}
        blocks.append(whole | {field: "".join(texts)})
    return blocks


def _merge_strings(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if isinstance(value, str):
            before = into.get(name, "")
            if not isinstance(before, str) or len(before) > MAX_ARGUMENTS_CHARS:
                raise UpstreamError("the engine sent a tool call of an unknown shape, or without end")
            into[name] = before + value
        elif isinstance(value, dict) and name == "arguments":  # some engines send them as an object
            into[name] = orjson.dumps(value).decode()
        elif value is not None:
            into[name] = value


def _arguments_chars(call: dict[str, Any]) -> int:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return len(arguments) if isinstance(arguments, str) else 0


def _begins_another(call: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Whether a piece with a call's index is of another call. A new id alone does not tell: some engines write one into
    every piece."""
    if piece.get("id") in (None, "", call["id"]):
        return False
    function, before = piece.get("function"), call.get("function")
    named = isinstance(function, dict) and function.get("name")
    return bool(named and isinstance(before, dict) and before.get("name"))


def merge_tool_call(calls: list[dict[str, Any]], delta: Any) -> None:
    """Merge one piece of a `tool_calls` delta into the calls so far, by its index: id and type stay as first
    given, name and arguments are concatenated. A piece without an index begins a call if it has a new id, and
    else belongs to the last one. Some engines give all calls the same index: there a piece with a new id and a name begins
    a call."""
    piece = _object(delta)
    index = piece.get("index")
    call: dict[str, Any] | None = None
    if isinstance(index, int):
        call = next((one for one in reversed(calls) if one["index"] == index), None)
        if call is not None and _begins_another(call, piece):
            call = None
    else:
        index = len(calls)
        if calls and piece.get("id") in (None, "", calls[-1]["id"]):
            call = calls[-1]
    if call is None:
        if len(calls) >= MAX_TOOL_CALLS:
            raise UpstreamError(f"the engine sent more than {MAX_TOOL_CALLS} tool calls")
        kind = piece.get("type") or "function"
        call = {"index": index, "id": None, "type": kind}
        if kind == "function":
            call["function"] = {"name": "", "arguments": ""}
        calls.append(call)
    for name, value in piece.items():
        if name in _CALL_NAMES:
            if isinstance(value, dict):
                raise UpstreamError("the engine sent a tool call of an unknown shape")
            if name == "id" and value and not call["id"]:
                call["id"] = value
        elif not isinstance(value, dict):
            if value and not call.get(name):
                call[name] = value
        elif name == "function" or name == call["type"]:
            _merge_strings(_object(call.setdefault(name, {})), value)
            if sum(map(_arguments_chars, calls)) > MAX_ALL_ARGUMENTS_CHARS:
                raise UpstreamError("the engine sent tool calls without end")
        else:
            call[name] = _merged(call.get(name), value)
