"""Long strings and lists that keep the JSON bytes from which they were parsed, and a writer that copies these bytes.

Encoding 30 MB again would block the event loop for too long; copying the received bytes takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

_EMPTY = orjson.Fragment(b'""')


class Signs(NamedTuple):
    """Character counts of JSON text: `breaks` counts each comma once and each opening bracket twice; `angles` counts `<`,
    `>` and `&`; `escapes` counts characters that are written as `\\u` and four digits."""

    breaks: int = 0
    angles: int = 0
    escapes: int = 0

    @classmethod
    def of(cls, data: bytes) -> Signs:
        return cls(
            data.count(b",") + 2 * (data.count(b"{") + data.count(b"[")),
            data.count(b"<") + data.count(b">") + data.count(b"&"),
            data.count(rb"\u"),
        )

    @classmethod
    def total(cls, several: Iterable[Signs]) -> Signs:
        breaks = angles = escapes = 0
        for each in several:
            breaks += each.breaks
            angles += each.angles
            escapes += each.escapes
        return cls(breaks, angles, escapes)


class LongText(str):
    """A string parsed from JSON. `json` is its source with quotes; `signs` counts the characters in that."""

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
    """A list parsed from JSON. `json` is its source, so the list must not be changed."""

    __slots__ = ("json",)

    json: bytes

    @classmethod
    def of(cls, members: list[Any], json: bytes) -> LongList:
        made = cls(members)
        made.json = json
        return made


class Measured(NamedTuple):
    """`short` is a value's JSON with each long string replaced by an empty one, `long` has these strings in order, and
    `size` is the number of bytes of the full JSON."""

    short: bytes
    long: list[LongText]
    size: int


def measured(value: Any) -> Measured:
    """Measure a value's JSON without encoding its long strings. Raises TypeError for a value that JSON cannot hold."""
    long: list[LongText] = []

    def shortened(part: Any) -> orjson.Fragment:
        if not isinstance(part, LongText):
            return _raw(part)
        long.append(part)
        return _EMPTY

    short = orjson.dumps(value, default=shortened, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    return Measured(short, long, len(short) + sum(len(text.json) - 2 for text in long))


def dumps(value: Any) -> bytes:
    """Encode a value as JSON; long strings and lists are copied from their source. Raises TypeError for a value that JSON
    cannot hold."""
    return orjson.dumps(value, default=_raw, option=orjson.OPT_PASSTHROUGH_SUBCLASS)


def json_bytes(value: Any) -> int:
    """The number of bytes that `dumps` would return, without encoding long strings and lists."""
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
