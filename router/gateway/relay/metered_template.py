"""Reads the events of a stream that differ from a parsed one only in their text, and in the usage at their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from backends.sse_events import event_template
from router.gateway.relay.event_tokens import index_of, text_of

_USAGE, _END = b'"usage":', b"}\n\n"
#: The most events that are read at once. Those of them that are not paid for are read again later.
_MOST = 64


class MeteredTemplate(NamedTuple):
    """An event of one choice, split around its text and its usage. Further events have the same `head` and `tail`.

    `head` ends with the opening quote of the text, the string member `field`; `tail` begins with its closing quote and ends
    with the event, or before the usage. `end` ends an event whose usage was left out (None: it has none).
    """

    choice: int
    field: str
    head: bytes
    tail: bytes
    seam: bytes  # tail + head: between two such events without usage
    end: bytes | None

    def read(self, data: bytes, at: int) -> list[bytes]:
        """A run of such events without usage from `at` on, where `head` stands: their texts (escaped, without their quotes). An
        event without text ends the run."""
        seam, start = self.seam, at + len(self.head)
        seam_bytes, find, startswith = len(seam), data.find, data.startswith
        quote = find(b'"', start)
        texts: list[bytes] = []
        while quote > start and startswith(seam, quote) and len(texts) < _MOST:
            texts.append(data[start:quote])
            start = quote + seam_bytes
            quote = find(b'"', start)
        if quote > start and startswith(self.tail, quote):
            texts.append(data[start:quote])
        return texts

    def read_counted(self, data: bytes, at: int) -> tuple[list[bytes], list[Any], list[int]]:
        """The same of events with usage, with their usages, and where each ends. Raises ValueError."""
        head, tail = self.head, self.tail
        find, startswith = data.find, data.startswith
        head_bytes, tail_bytes = len(head), len(tail)
        texts: list[bytes] = []
        usages: list[Any] = []
        ends: list[int] = []
        while True:
            start = at + head_bytes
            quote = find(b'"', start)
            if quote <= start or not startswith(tail, quote):
                break
            at = quote + tail_bytes
            end = data.index(_END, at)
            usages.append(orjson.loads(data[at:end]))
            at = end + len(_END)
            texts.append(data[start:quote])
            ends.append(at)
            if len(ends) == _MOST or not startswith(head, at):
                break
        return texts, usages, ends

    def without_usage(self, texts: list[bytes]) -> bytes:
        """The events that have these texts, without usage."""
        return b"".join(b"%b%b%b" % (self.head, text, self.end or self.tail) for text in texts)


def metered_template(
    event: bytes, choices: Sequence[dict[str, Any]], usage: object
) -> MeteredTemplate | None:
    """The template of an event (without its blank line) that was parsed to `choices` and `usage`. None unless its one
    choice has one text, and nothing else in it counts."""
    if len(choices) != 1:
        return None
    (choice,) = choices
    delta = choice.get("delta")
    texts = delta if isinstance(delta, dict) and delta else choice
    template = event_template(event + b"\n\n", choice, texts)
    if template is None or text_of(choice) != texts[template.field]:
        return None
    tail, end = template.tail, None
    if usage is not None:
        at = tail.rfind(_USAGE)
        opening = tail.find(b"{", at)
        if at < 0 or opening < 0 or not tail.endswith(b"}" + _END):
            return None
        try:
            if orjson.loads(tail[opening : -len(_END)]) != usage:
                return None
        except ValueError:
            return None
        tail, end = tail[:opening], tail[:at].rstrip(b", ") + _END
    return MeteredTemplate(index_of(choice), template.field, template.head, tail, tail + template.head, end)
