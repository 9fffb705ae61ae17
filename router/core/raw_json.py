"""Long strings and lists of a JSON document that keep the JSON they were read from, and the writer that uses it.

To write 30 MB of them anew takes longer than an event loop may be held; to copy the JSON that came takes a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

_EMPTY = orjson.Fragment(b'""')


class Signs(NamedTuple):
    """How often signs stand in JSON: `breaks` are commas, and twice each bracket that opens; `angles` are `<`, `>`, `&`."""

    breaks: int = 0
    angles: int = 0

    @classmethod
    def of(cls, data: bytes) -> Signs:
        return cls(
            data.count(b",") + 2 * (data.count(b"{") + data.count(b"[")),
            data.count(b"<") + data.count(b">") + data.count(b"&"),
        )

    @classmethod
    def total(cls, several: Iterable[Signs]) -> Signs:
        breaks = angles = 0
        for each in several:
            breaks += each.breaks
            angles += each.angles
        return cls(breaks, angles)


class LongText(str):
    """A string read from JSON; `json` is how it stood there, quotes included, `signs` the signs in it."""

    __slots__ = ("json", "signs")

    json: bytes
    signs: Signs

    @classmethod
    def of(cls, text: str, json: bytes, signs: Signs) -> LongText:
        made = cls(text)
        made.json = json
        made.signs = signs
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


class Measured(NamedTuple):
    """`short` is the JSON of a value in which each long string is empty, `long` are these strings, `size` the bytes of the
    whole JSON."""

    short: bytes
    long: list[LongText]
    size: int


def measured(value: Any) -> Measured:
    """How large a value is as JSON; its long strings are not written. Raises TypeError for what is no JSON."""
    long: list[LongText] = []

    def shortened(part: Any) -> orjson.Fragment:
        if not isinstance(part, LongText):
            return _raw(part)
        long.append(part)
        return _EMPTY

    short = orjson.dumps(value, default=shortened, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    return Measured(short, long, len(short) + sum(len(text.json) - 2 for text in long))


def dumps(value: Any) -> bytes:
    """A JSON value as bytes, its long strings and lists as they came. Raises TypeError for what is no JSON."""
    return orjson.dumps(value, default=_raw, option=orjson.OPT_PASSTHROUGH_SUBCLASS)


def json_bytes(value: Any) -> int:
    """How many bytes `dumps` would give; long strings and lists are not written."""
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
