"""Server-sent events with OpenAI's chunks: writes them, parses them, and detects tokens.

`backends.sse` uses this to read an engine's stream, the gateway's codecs to read what `sse` passes on, and the emulator
and the benchmarks for their own streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from backends.bounded_json import TooComplex, loads_event
from router.core.errors import AnswerTooLarge, UpstreamError

#: The data of the event that ends a stream, and that event.
DONE = b"[DONE]"
END = b"data: [DONE]\n\n"


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
        payload = loads_event(data)
    except TooComplex:
        raise AnswerTooLarge("the engine sent an event of too many parts") from None
    except ValueError:
        payload = None
    if isinstance(payload, dict):
        return payload
    raise UpstreamError("the engine sent an event that is not a JSON object")


def objects(stream: bytes) -> Iterator[dict[str, Any]]:
    """The objects of all events of a stream, without the end mark. Raises like `object_of`."""
    for one in stream.split(b"\n\n"):
        data = data_of(one)
        if data and data != DONE:
            yield object_of(data)


def carries_token(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of an event contains content, reasoning, a refusal or a tool call (a role alone is no token)."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(
            delta.get("content")
            or delta.get("reasoning")
            or delta.get("reasoning_content")
            or delta.get("refusal")
            or delta.get("tool_calls")
            or delta.get("function_call")
        )
    return bool(choice.get("text"))
