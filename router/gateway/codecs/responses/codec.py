"""The codec of OpenAI's Responses API, for requests that go to an engine as a chat.

The events and their order are those of https://platform.openai.com/docs/api-reference/responses-streaming: one item is
open at a time, and its end repeats the text of its deltas. Tool calls that an engine interleaves are sent one after
another: a later call waits until the call before it is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from backends.assemble import merge_tool_call
from backends.bounded_json import loads_with_halves
from router.core.errors import Refusal, UpstreamError
from router.core.raw_json import dumps
from router.gateway.codecs.codec import THINKING, EventReader, Translated, said_in
from router.gateway.codecs.openai import error_object
from router.gateway.codecs.responses.answer import (
    annotations_of,
    call_item,
    item_id,
    item_of,
    logprobs_of,
    output_of,
    part_of,
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
    """The open content part. Its text is kept escaped as in JSON. `place` are the members that say where it is."""

    __slots__ = ("after", "before", "kind", "logprobs", "pieces", "place")

    def __init__(self, kind: str, place: dict[str, Any]) -> None:
        self.kind = kind
        self.place = place
        self.pieces: list[bytes] = []
        self.logprobs: list[dict[str, Any]] = []
        self.before = b"," + orjson.dumps(place)[1:-1] + b',"delta":"'
        self.after = b'","logprobs":[]}\n\n' if kind == "output_text" else b'"}\n\n'

    def object(self, annotations: list[dict[str, Any]]) -> dict[str, Any]:
        text: str = loads_with_halves(b'"' + b"".join(self.pieces) + b'"')
        return part_of(self.kind, text, self.logprobs, annotations)


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
        self._item: dict[str, Any] | None = None  # the open message or reasoning, with its complete parts
        self._part: _Part | None = None  # its open part
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
        content, thoughts = said_in(delta)
        if thoughts:
            self._say("reasoning_text", _escaped(thoughts), out)
        if content:
            self._say("output_text", _escaped(content), out, logprobs_of(choice.get("logprobs")))
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
        part = self._part
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
        self._text_bytes += _PART_BYTES
        self._write_calls(out, last=True)
        item = self._item
        if item is not None and (item["type"] == "reasoning") == (kind == "reasoning_text"):
            self._end_part(out, item)
        else:
            self._close(out)
            self._item = item = item_of(kind, self._ids, len(self._output), "in_progress", [])
            out.append(self._item_event("added", item))
        index, content = len(self._output), item["content"]
        place = {"item_id": item["id"], "output_index": index, "content_index": len(content)}
        self._part = part = _Part(kind, place)
        out.append(self._event("response.content_part.added", **place, part=part.object([])))
        return part

    def _close(self, out: list[bytes], status: str = "completed") -> None:
        """End the open message or reasoning."""
        item = self._item
        if item is None:
            return
        self._end_part(out, item)
        item["status"] = status
        out.append(self._item_event("done", item))
        self._output.append(item)
        self._item = self._part = self._template = None

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

    def _end_part(self, out: list[bytes], item: dict[str, Any]) -> None:
        """End the open part of the open item."""
        part = self._part
        assert part is not None  # noqa: S101 (an item that was begun has a part)
        annotations: list[dict[str, Any]] = []
        if part.kind == "output_text":
            annotations, self._annotations = self._annotations, []
        for index, one in enumerate(annotations):
            added = {"annotation_index": index, "annotation": one}
            out.append(self._event("response.output_text.annotation.added", **part.place, **added))
        done = part.object(annotations)
        said = {name: done[name] for name in ("text", "refusal", "logprobs") if name in done}
        out.append(self._event(f"response.{part.kind}.done", **part.place, **said))
        out.append(self._event("response.content_part.done", **part.place, part=done))
        item["content"].append(done)

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
