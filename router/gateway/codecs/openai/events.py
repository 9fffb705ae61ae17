"""Server-sent events of OpenAI's streams: what stands in one event, and runs of events that differ in one string only."""

from __future__ import annotations

from typing import Any, NamedTuple

from backends.bounded_json import loads_event
from router.core.errors import UpstreamError

_NESTED = (list, dict)


class Cut(NamedTuple):
    """An event cut at the value of one string field: `head` ends with the opening quote, `tail` begins with
    the closing one and ends with the event. An event with this head and tail, and no quote between them, is
    the same but for that string."""

    field: str
    head: bytes
    tail: bytes
    seam: bytes  # tail + head: where one event of the kind ends and the next begins

    def run(self, raw: bytes, at: int) -> tuple[list[bytes], int, bool]:
        """Read the events of this kind that begin at `at`, where `head` stands. Gives their strings as they
        stand (JSON-escaped), where they end, and whether the head stands there again, of another kind."""
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


def cut(event: bytes, choice: dict[str, Any], texts: dict[str, Any]) -> Cut | None:
    """Cut an event that was parsed to `choice` (its only one), `texts` being the choice itself or its delta.

    None unless the event says nothing but one non-empty string, so that to skip the rest of a like event
    loses nothing.
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
    if field is None or not isinstance(texts[field], str):
        return None
    for name, value in choice.items():
        if value is not None and name != "delta" and (name == "finish_reason" or isinstance(value, _NESTED)):
            return None
    key = b'"' + field.encode() + b'"'
    key_at = event.find(key)
    after_key = key_at + len(key)
    if key_at < 0 or event.find(key, after_key) >= 0:
        return None
    if not event.startswith(b"data:") or not event.endswith(b"\n\n"):
        return None
    opening = event.find(b'"', after_key) + 1
    closing = event.find(b'"', opening)
    if closing < 0 or event[closing - 1] == 0x5C:  # a backslash: the quote belongs to the string
        return None
    head, tail = event[:opening], event[closing:]
    return Cut(field, head, tail, tail + head)


def event_payload(event: bytes) -> bytes | None:
    """The JSON text of one server-sent event; None for a comment, an event without data, and `[DONE]`."""
    if event.startswith(b"data: {") and event.find(b"\n") >= len(event) - 2:
        return event[6:]
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    payload = b"\n".join(lines)
    return None if payload in {b"", b"[DONE]"} else payload


def parse_event(payload: bytes) -> dict[str, Any]:
    """The object of an event. Raises UpstreamError for what is no JSON object, and for an error event."""
    try:
        chunk = loads_event(payload)
    except ValueError:
        raise UpstreamError("the engine sent an event that is not JSON") from None
    if not isinstance(chunk, dict):
        raise UpstreamError("the engine sent an event that is not a JSON object")
    if chunk.get("error"):
        raise UpstreamError("the engine sent an error in its stream")
    return chunk
