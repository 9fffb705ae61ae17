# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""Server-sent events with OpenAI's chunks: writes them, parses them, and detects tokens.

`backends.sse` uses this to read an engine's stream, the gateway's codecs to read what `sse` passes on, and the emulator
and the benchmarks for their own streams.

Most events of a stream differ from the one before in one string only. `event_template` splits such an event around its
string; `EventTemplate.read` then takes the strings out of the events that follow. An `EventFormat` has what templates of
several answers have in common.

`backends.native` has this module compiled, for `backends.native.sse` and `backends.native.assemble`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from backends.bounded_json import SMALL_BYTES, TooComplex, loads_event
from router.compiled import compiled_init
from router.core.errors import AnswerTooLarge, UpstreamError

#: The data of the event that ends a stream, and that event.
DONE = b"[DONE]"
END = b"data: [DONE]\n\n"
#: The data of an event that says nothing: llama-server begins a completion of several prompts with it.
NULL = b"null"
_NESTED = (list, dict)
#: The fields of a choice's delta that hold tokens.
_TOKENS = frozenset({"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"})


def event(data: bytes) -> bytes:
    """One event with this data, which must not contain a line end."""
    return b"data: %b\n\n" % data


def data_of(event: bytes) -> bytes | None:
    """The data of one event, with or without the blank line that ends it; None for a comment and for blank lines.

    llama-server has written errors under a field named `error`; they are returned like data.
    """
    if event.startswith(b"data: "):
        end = event.find(b"\n", 6)
        if end < 0:
            return event[6:].strip()
        if end >= len(event) - 2:  # at most one character follows, which cannot be a line
            return event[6:end]
    parts = [
        line.partition(b":")[2].strip()
        for line in event.split(b"\n")
        if line.startswith((b"data:", b"error:"))
    ]
    text = b"\n".join(parts)
    if event.startswith(b"error:") and not text.startswith(b'{"error"'):
        error = text if text.startswith(b"{") else orjson.dumps(text.decode("utf-8", "replace"))
        return b'{"error":%b}' % error
    return text if parts else None


def object_of(data: bytes) -> dict[str, Any]:
    """The JSON object of an event's data. Raises UpstreamError, and AnswerTooLarge for an object with too many parts."""
    try:
        payload = orjson.loads(data) if len(data) <= SMALL_BYTES else loads_event(data)
    except TooComplex:
        raise AnswerTooLarge("the engine sent an event of too many parts") from None
    except ValueError:
        try:
            payload = loads_event(data)  # it repairs what the engine wrote
        except ValueError:
            payload = None
    if type(payload) is dict:
        return payload
    raise UpstreamError("the engine sent an event that is not a JSON object")


def objects(stream: bytes) -> Iterator[dict[str, Any]]:
    """The objects of all events of a stream, without the end mark. Raises like `object_of`."""
    for one in stream.split(b"\n\n"):
        data = data_of(one)
        if data and data != DONE:
            yield object_of(data)


def chunk_of(event: bytes) -> dict[str, Any] | None:
    """The object of one event; None for a comment, an event without data, and the end mark. Raises UpstreamError for
    what is no JSON object, and for an error event."""
    data = data_of(event)
    if not data or data == DONE:
        return None
    chunk = object_of(data)
    if chunk.get("error"):
        raise UpstreamError("the engine sent an error in its stream")
    return chunk


@compiled_init
class EventTemplate(NamedTuple):
    """An event split around the value of one string field.

    `head` ends with the opening quote; `tail` begins with the closing quote and ends with the event. An event with this
    head and tail, and no quote between them, differs in that string only.
    """

    field: str
    head: bytes
    tail: bytes
    seam: bytes  # tail + head: between two events of the same template

    def read(self, raw: bytes, at: int) -> tuple[list[bytes], int, bool]:
        """Read the events of this template from `at`, where `head` stands.

        Returns their strings (JSON-escaped), where they end, and whether the next event has the same head but another
        tail.
        """
        seam, seam_bytes = self.seam, len(self.seam)
        start = at + len(self.head)
        find, startswith = raw.find, raw.startswith
        quote = find(b'"', start)
        pieces: list[bytes] = []
        while startswith(seam, quote):
            pieces.append(raw[start:quote])
            start = quote + seam_bytes
            quote = find(b'"', start)
        if startswith(self.tail, quote):
            pieces.append(raw[start:quote])
            return pieces, quote + len(self.tail), False
        return pieces, start - len(self.head), True


def event_template(event: bytes, choice: dict[str, Any], texts: dict[str, Any]) -> EventTemplate | None:
    """The template of an event that was parsed to `choice` (its only one). `texts` is the choice itself or its delta.

    None unless the event's only content is one non-empty string: then nothing is lost in similar events that are not
    parsed.
    """
    field = None
    if texts is choice:
        field = "text" if choice.get("text") else None
    else:
        for name, value in texts.items():
            if value and name != "role":
                if field is not None:
                    return None
                field = name
    if field is None or type(texts[field]) is not str:
        return None
    for name, value in choice.items():
        if value is not None and name != "delta" and (name == "finish_reason" or type(value) in _NESTED):
            return None
    key = b'"' + field.encode() + b'"'
    _, found, rest = event.partition(key)
    if not found or key in rest:
        return None
    if not event.startswith(b"data:") or not event.endswith(b"\n\n"):
        return None
    _, _, rest = rest.partition(b'"')
    text, closing, _ = rest.partition(b'"')
    if not closing or text[-1:] == b"\\":  # the quote belongs to the string
        return None
    head, tail = event[: len(event) - len(rest)], rest[len(text) :]
    return EventTemplate(field, head, tail, tail + head)


class EventFormat:
    """How an engine writes its events with text: learned from one answer for later ones, of which no such event is parsed then.

    All events of an answer begin with the same members, such as its id, up to `choices`. What follows is the same in all
    answers but for the text.
    """

    __slots__ = ("_field", "_index", "_opening", "_tail")

    def __init__(self) -> None:
        self._field = ""
        self._index: Any = None  # of the choice
        self._opening = b""  # from `choices` up to the text; empty if nothing is known
        self._tail = b""

    def learn(self, template: EventTemplate) -> None:
        """Keep what a template tells, if its events have a text and no other value."""
        self._opening = b""
        head = shared_head(template.head)
        if not head:
            return
        opening = template.head[len(head) :]
        rest = orjson.loads(b"{" + opening + template.tail)
        choice = rest.pop("choices")[0]
        index = choice.pop("index", None)
        texts = choice.pop("delta", None) or choice
        texts.pop(template.field, None)
        role = texts.pop("role", None)
        others = [*rest.values(), *choice.values(), *texts.values()]
        if others.count(None) == len(others) and role in {None, "assistant"}:
            self._field, self._index, self._opening, self._tail = (
                template.field,
                index,
                opening,
                template.tail,
            )

    def template(self, event: bytes, head: bytes, index: Any, is_token: bool) -> EventTemplate | None:
        """The template of events with text that may follow this one, about the choice of this index, in the same answer. An
        event with a token has to be one of them. `head` is the event's `shared_head`."""
        if not self._opening or index != self._index:
            return None
        if not head or (
            is_token and not (event.startswith(self._opening, len(head)) and event.endswith(self._tail))
        ):
            return None
        head += self._opening
        return EventTemplate(self._field, head, self._tail, self._tail + head)


def shared_head(event: bytes) -> bytes:
    """An event up to its member `choices`, as all events of an answer begin; empty if there is an object before that."""
    head, found, _ = event.partition(b'"choices":')
    return (
        head
        if found and head.startswith(b"data:") and not head.endswith(b"\\") and head.count(b"{") == 1
        else b""
    )


def carries_token(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of an event contains content, reasoning, a refusal or a tool call (a role alone is no token)."""
    delta = choice.get("delta")
    if type(delta) is not dict:
        return bool(choice.get("text"))
    for name, value in delta.items():  # noqa: SIM110 (twice the time)
        if value and name in _TOKENS:
            return True
    return False
