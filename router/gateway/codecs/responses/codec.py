"""The codec of OpenAI's Responses API, for requests that go to an engine as a chat.

The events and their order are those of https://platform.openai.com/docs/api-reference/responses-streaming: one item is
open at a time, and its end repeats the text of its deltas. Tool calls that an engine interleaves are sent one after
another: a later call waits until the call before it is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from backends.assemble import merge_tool_call
from backends.bounded_json import loads_with_halves
from router.core.errors import Refusal, UpstreamError
from router.core.raw_json import dumps
from router.gateway.codecs.codec import EventReader, Translated, texts_of
from router.gateway.codecs.openai import error_object
from router.gateway.codecs.responses.answer import (
    THINKING,
    annotations_of,
    call_item,
    item_id,
    logprobs_of,
    message_item,
    output_of,
    reasoning_item,
    reasoning_part,
    refusal_part,
    text_part,
    usage_object,
)
from router.gateway.codecs.responses.request import renamed

#: Field of a chat's delta -> kind of the events of its text.
_TEXTS = {"content": "output_text", "refusal": "refusal", **dict.fromkeys(THINKING, "reasoning_text")}

#: By the reason why a chat ended, that of an incomplete response.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: Of an answer's text, escaped as in JSON; logprobs count a quarter. The end of the stream repeats all of it four times,
#: at once.
MAX_TEXT_BYTES = 2 * 1024 * 1024
#: What each part counts beside its text: its events and its place in the answer.
_PART_BYTES = 2048


class _Part:
    """One content part so far. Its text is kept escaped as in JSON."""

    __slots__ = ("after", "annotations", "before", "index", "kind", "logprobs", "pieces")

    def __init__(self, kind: str, item: str, output_index: int, index: int) -> None:
        self.kind = kind
        self.index = index
        self.pieces: list[bytes] = []
        self.logprobs: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        place = {"item_id": item, "output_index": output_index, "content_index": index}
        self.before = b"," + orjson.dumps(place)[1:-1] + b',"delta":"'
        self.after = b'","logprobs":[]}\n\n' if kind == "output_text" else b'"}\n\n'

    @property
    def text(self) -> str:
        text: str = loads_with_halves(b'"' + b"".join(self.pieces) + b'"')
        return text

    def object(self) -> dict[str, Any]:
        if self.kind == "output_text":
            return text_part(self.text, self.logprobs, self.annotations)
        return refusal_part(self.text) if self.kind == "refusal" else reasoning_part(self.text)


@dataclass(slots=True)
class _Open:
    """The open message or reasoning item."""

    kind: str
    item: str
    parts: list[_Part] = field(default_factory=list)

    def object(self, status: str) -> dict[str, Any]:
        make = message_item if self.kind == "message" else reasoning_item
        return make(self.item, status, [part.object() for part in self.parts])


class ResponsesCodec(EventReader):
    """Responses and their events, for one request. `clock` gives the time in s since the epoch."""

    stream_type = b"text/event-stream; charset=utf-8"
    body_type = b"application/json"
    adjust = None
    usage_collector = None
    _text_fields = _TEXTS

    def __init__(self, request: Translated, request_id: str, clock: Callable[[], float] = time.time) -> None:
        self._ids = request_id.removeprefix("req_")  # what the ids of a response and its items share
        model = request.body.get("model")
        self._asked_model = model if isinstance(model, str) else ""
        self._echo, self._namespaces = request.echo, request.namespaces
        self._clock = clock
        self._begin_stream()

    def _begin_stream(self) -> None:
        self._model = self._asked_model  # until the engine's events name one
        self._created_at = int(self._clock())
        self._sequence = 0
        self._output: list[dict[str, Any]] = []  # complete items
        self._open: _Open | None = None
        self._calls: list[dict[str, Any]] = []
        self._call = 0  # the open one
        self._call_item: tuple[str, str] | None = None  # its item id and call id, once its item has begun
        self._call_sent = 0  # characters of its arguments that were sent
        # Text that arrived inside a call.
        self._later: list[tuple[str, bytes, list[dict[str, Any]] | None]] = []
        # By id of a call: its length when last parsed, and whether it was complete.
        self._tried: dict[int, tuple[int, bool]] = {}
        self._annotations: list[dict[str, Any]] = []  # of the open or next text, sent at its end
        self._service_tier: str | None = None
        self._text_bytes = 0
        self._template = None
        self._finish_reason: str | None = None

    def first(self, data: bytes) -> bytes:
        """The events `response.created` and `response.in_progress`, then those for the engine's first events, `data`."""
        self._begin_stream()  # an earlier attempt may have failed on its first events
        self._sequence = 2
        rest = self.events(data)
        after, self._sequence = self._sequence, 0
        response = self._response("in_progress")
        head = b"".join(
            self._event(f"response.{name}", response=response) for name in ("created", "in_progress")
        )
        self._sequence = after
        return head + rest

    def events(self, data: bytes) -> bytes:
        """The events for complete events of a chat. Raises UpstreamError for an event that is not JSON."""
        out: list[bytes] = []
        self._read(data, out)
        return b"".join(out)

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        """The end: the open item ends, then comes the response. `finish_reason` falls back to the one in the stream."""
        reason = finish_reason or self._finish_reason
        status = _status_of(reason)
        out: list[bytes] = []
        self._write_calls(out, "completed" if self._later else status, last=True)
        later, self._later = self._later, []
        for kind, escaped, logprobs in later:
            self._text_bytes -= len(escaped)  # it counted when it came
            self._say(kind, escaped, out, logprobs)
        self._close(out, status)
        response = self._response(status, reason, usage) | {"headway": headway}
        out.append(self._event(f"response.{status}", response=response))
        return b"".join(out)

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        choices, tier = answer.get("choices"), answer.get("service_tier")
        choice: Mapping[str, Any] = choices[0] if choices else {}
        reason = choice.get("finish_reason")
        status = _status_of(reason)
        self._output = output_of(choice, self._ids, self._namespaces)
        if self._output:
            self._output[-1]["status"] = status  # all items before it are complete
        self._model, self._service_tier = headway["model"], tier if isinstance(tier, str) else None
        return dumps(self._response(status, reason, answer.get("usage")) | {"headway": headway})

    def error(self, refusal: Refusal) -> bytes:
        return orjson.dumps({"error": _error(refusal)})

    def stream_error(self, refusal: Refusal) -> bytes:
        """The event that ends a failed stream. It has the error's members, as documented, and once more under `error`,
        where clients of other versions look."""
        error = _error(refusal)
        members = {name: error[name] for name in ("code", "message", "param")}
        return self._event("error", **members, error=error)

    # --- what a chat's event says --------------------------------------------------------------------
    def _note(self, chunk: Mapping[str, Any]) -> None:
        model, tier = chunk.get("model"), chunk.get("service_tier")
        self._model = model if isinstance(model, str) else self._model
        self._service_tier = tier if isinstance(tier, str) else self._service_tier

    def _write_texts(self, field: str, pieces: Sequence[bytes], out: list[bytes]) -> None:
        for piece in pieces:
            if piece:
                self._say(_TEXTS[field], piece, out)

    def _write_choice(self, choice: dict[str, Any], delta: dict[str, Any] | None, out: list[bytes]) -> None:
        delta = delta or {}
        content, logprobs = delta.get("content"), logprobs_of(choice.get("logprobs"))
        thoughts = next((text for name in THINKING if (text := delta.get(name))), None)
        if isinstance(content, list):
            content, thoughts = texts_of(content)
        if isinstance(thoughts, str) and thoughts:
            self._say("reasoning_text", _escaped(thoughts), out)
        if isinstance(content, str) and content:
            self._say("output_text", _escaped(content), out, logprobs)
        if annotations := annotations_of(delta.get("annotations")):
            self._count(len(orjson.dumps(annotations)))
            self._annotations += annotations
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._say("refusal", _escaped(refusal), out)
        pieces = delta.get("tool_calls")
        if isinstance(pieces, list) and pieces:
            self._close(out)
            for piece in pieces:
                merge_tool_call(self._calls, piece)
            self._write_calls(out)
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason = choice["finish_reason"]

    def _say(
        self, kind: str, escaped: bytes, out: list[bytes], logprobs: list[dict[str, Any]] | None = None
    ) -> None:
        """Send a piece of JSON-escaped text of this kind; opens its item and part if needed."""
        self._count(len(escaped))
        part = self._open.parts[-1] if self._open is not None else None
        if part is None or part.kind != kind:
            if self._later or not all(map(self._is_complete, self._calls[self._call :])):
                self._later.append((kind, escaped, logprobs))
                return
            part = self._begin(kind, out)
        part.pieces.append(escaped)
        after = part.after
        if logprobs:
            part.logprobs += logprobs
            written = orjson.dumps(logprobs)
            self._text_bytes += len(written) // 4
            after = b'","logprobs":' + written + b"}\n\n"
        out.append(
            b'event: response.%b.delta\ndata: {"type":"response.%b.delta","sequence_number":%d%b%b%b'
            % (kind.encode(), kind.encode(), self._sequence, part.before, escaped, after)
        )
        self._sequence += 1

    def _count(self, size: int) -> None:
        self._text_bytes += size
        if self._text_bytes > MAX_TEXT_BYTES:
            raise UpstreamError("the engine's answer is too large")

    def _begin(self, kind: str, out: list[bytes]) -> _Part:
        """Open a part, in the open item if it fits."""
        item_kind = "reasoning" if kind == "reasoning_text" else "message"
        self._text_bytes += _PART_BYTES
        self._write_calls(out, last=True)
        if self._open is None or self._open.kind != item_kind:
            self._close(out)
            item = item_id("rs" if item_kind == "reasoning" else "msg", self._ids, len(self._output))
            self._open = _Open(item_kind, item)
            out.append(self._item_event("added", self._open.object("in_progress")))
        else:
            out.append(self._part_done(self._open.parts[-1]))
        part = _Part(kind, self._open.item, len(self._output), len(self._open.parts))
        out.append(self._part_event("content_part.added", part, part=part.object()))
        self._open.parts.append(part)
        return part

    def _close(self, out: list[bytes], status: str = "completed") -> None:
        """End the open message or reasoning."""
        if self._open is None:
            return
        out.append(self._part_done(self._open.parts[-1]))
        item = self._open.object(status)
        out.append(self._item_event("done", item))
        self._output.append(item)
        self._open = self._template = None

    # --- tool calls ----------------------------------------------------------------------------------
    def _write_calls(self, out: list[bytes], status: str = "completed", *, last: bool = False) -> None:
        """Send what is new of the open call, and go on to the next one if it is complete.

        `last`: no more of any call follows, and the final one ends with `status`.
        """
        while self._call < len(self._calls):
            call = self._calls[self._call]
            function = call.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            more = self._call + 1 < len(self._calls)
            if not (name or more or last):
                return
            index = len(self._output)
            if self._call_item is None:
                item = item_id("fc", self._ids, index)
                call_id = call.get("id") or item_id("call", self._ids, index)
                self._call_item = item, call_id
                begun = call_item(item, "in_progress", call_id, name, "", self._namespaces)
                out.append(self._item_event("added", begun))
            item, call_id = self._call_item
            place = {"item_id": item, "output_index": index}
            if len(arguments) > self._call_sent:
                delta = arguments[self._call_sent :]
                self._call_sent = len(arguments)
                out.append(self._event("response.function_call_arguments.delta", **place, delta=delta))
            if not last and not (more and self._is_complete(call)):
                return
            ended = "completed" if more else status
            done = call_item(item, ended, call_id, name, arguments, self._namespaces)
            said = {"name": done["name"], "arguments": arguments}
            out.append(self._event("response.function_call_arguments.done", **place, **said))
            out.append(self._item_event("done", done))
            self._output.append(done)
            self._call += 1
            self._call_item, self._call_sent = None, 0

    def _is_complete(self, call: Mapping[str, Any]) -> bool:
        """Whether a call has ended: its arguments are a JSON object. They are parsed again when they are twice as long."""
        arguments = (call.get("function") or {}).get("arguments") or ""
        size = len(arguments)
        tried, complete = self._tried.get(id(call), (0, False))
        if size != tried and size >= 2 * tried:
            complete = _is_object(arguments)
            self._tried[id(call)] = size, complete
        return complete

    # --- events --------------------------------------------------------------------------------------
    def _event(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps(event))

    def _item_event(self, what: str, item: Mapping[str, Any]) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=len(self._output), item=item)

    def _part_event(self, what: str, of: _Part, **members: Any) -> bytes:
        assert self._open is not None  # noqa: S101 (a part has an item)
        place = {"item_id": self._open.item, "output_index": len(self._output), "content_index": of.index}
        return self._event(f"response.{what}", **place, **members)

    def _part_done(self, part: _Part) -> bytes:
        said: dict[str, Any] = {"refusal" if part.kind == "refusal" else "text": part.text}
        done = b""
        if part.kind == "output_text":
            said["logprobs"] = part.logprobs
            part.annotations, self._annotations = self._annotations, []
            for index, one in enumerate(part.annotations):
                done += self._part_event(
                    "output_text.annotation.added", part, annotation_index=index, annotation=one
                )
        done += self._part_event(f"{part.kind}.done", part, **said)
        return done + self._part_event("content_part.done", part, part=part.object())

    def _response(
        self, status: str, finish_reason: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The response so far. `usage` is that of a chat. The engine's service tier holds, else the requested one."""
        reason = _INCOMPLETE.get(finish_reason or "") if status == "incomplete" else None
        return {
            "id": f"resp_{self._ids}",
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": int(self._clock()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": self._model,
            "output": [] if status == "in_progress" else self._output,
            "usage": None if usage is None else usage_object(usage),
            **self._echo,
            **({} if self._service_tier is None else {"service_tier": self._service_tier}),
        }


def _status_of(finish_reason: str | None) -> str:
    """The status of a response whose chat ended for this reason."""
    return "incomplete" if finish_reason in _INCOMPLETE else "completed"


def _error(refusal: Refusal) -> dict[str, Any]:
    """The error object, with this API's name of the field."""
    error = error_object(refusal)
    return error | {"param": renamed(error["param"])}


def _escaped(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]


def _is_object(json: str) -> bool:
    if not json.rstrip().endswith("}"):
        return False
    try:
        return isinstance(orjson.loads(json), dict)
    except orjson.JSONDecodeError:
        return False
