"""Server-sent events of OpenAI's streams: parsing one event, and reading runs of similar events without parsing.

Most events of a stream differ from the one before in one string only. `event_template` splits such an event around its
string; `EventTemplate.read` then takes the strings out of the events that follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backends.sse_events import DONE, data_of, object_of
from router.core.errors import UpstreamError

_NESTED = (list, dict)


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
    return EventTemplate(field, head, tail, tail + head)


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
