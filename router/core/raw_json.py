"""Long strings and lists of a JSON document that keep the JSON they were read from, and the writer that uses it.

To write 30 MB of them anew takes longer than an event loop may be held; to copy the JSON that came takes a tenth.
"""

from __future__ import annotations

from typing import Any

import orjson


class LongText(str):
    """A string read from JSON; `json` is how it stood there, quotes included."""

    __slots__ = ("json",)

    json: bytes

    @classmethod
    def of(cls, text: str, json: bytes) -> LongText:
        made = cls(text)
        made.json = json
        return made


class LongList(list[Any]):
    """A list read from JSON; `json` is how it stood there. It must not be changed."""

    __slots__ = ("json",)

    json: bytes

    @classmethod
    def of(cls, members: list[Any], json: bytes) -> LongList:
        made = cls(members)
        made.json = json
        return made


def dumps(value: Any) -> bytes:
    """A JSON value as bytes, its long strings and lists as they came. Raises TypeError for what is no JSON."""
    return orjson.dumps(value, default=_raw, option=orjson.OPT_PASSTHROUGH_SUBCLASS)


def size(value: Any) -> int:
    """The bytes that `dumps` would make, without making those of long strings and lists."""
    apart = 0

    def left_out(value: Any) -> str:
        nonlocal apart
        if isinstance(value, LongText | LongList):
            apart += len(value.json) - 2
            return ""
        raise TypeError(f"{type(value).__name__} is no JSON")

    return len(orjson.dumps(value, default=left_out, option=orjson.OPT_PASSTHROUGH_SUBCLASS)) + apart


def _raw(value: Any) -> orjson.Fragment:
    if isinstance(value, LongText | LongList):
        return orjson.Fragment(value.json)
    raise TypeError(f"{type(value).__name__} is no JSON")
