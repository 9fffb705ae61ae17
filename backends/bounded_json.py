"""Parses JSON of unknown origin in bounded time: no step holds the event loop for long, whatever the document contains.

Small documents are parsed at once. In larger ones the structure outside of strings is counted first, so that a document
with too many members is refused before it is parsed. In the largest ones the long strings are taken out, read in pieces
and put back (`LongText`); the event loop runs between the pieces.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import orjson

from router.compiled import openings
from router.core.raw_json import LongList, LongText, Signs


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a document: `values` (numbers, strings, ...), `members` (members of objects, objects, lists), and
    `depth`, levels of nesting."""

    values: int
    members: int
    depth: int


#: Parsing a document at these limits takes about 20 ms.
BOUNDS = Bounds(values=1 << 18, members=1 << 16, depth=64)
#: The limits for one event, line or error of an engine.
EVENT_BOUNDS = Bounds(values=1 << 15, members=1 << 13, depth=64)
#: Documents up to this size are not counted: parsing takes less than 5 ms, whatever they contain.
SMALL_BYTES = 32 * 1024
#: Up to this size, strings are parsed in place.
_IN_PLACE_BYTES = 2 * 1024 * 1024
#: Strings of at least this many bytes are taken out of larger documents.
_LONG_BYTES = 4 * 1024
#: The largest rest of a document without its long strings.
_MAX_REST_BYTES = 6 * 1024 * 1024
#: The most memory of one string; copying more takes too long. Text with a character beyond Latin-1 takes two bytes for
#: each character, text with one beyond the Basic Multilingual Plane four.
_MAX_STRING_MEMORY = 40 * 1024 * 1024
_WINDOW = 128 * 1024
#: The longest time of one step.
_STEP_S = 0.004

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
#: The inside of a string up to its end, or up to an escape that is cut off. Possessive quantifiers: it does not
#: backtrack.
_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?![dD][89abAB])[0-9a-fA-F]{4})'
    rb"|\\[^u])*+"
)
#: An escape of half a surrogate pair, without the other half beside it.
_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
#: A vector of an embedding: not nested, and short enough to be parsed at once.
_NUMBERS = re.compile(rb"\[[-+0-9.eE,\s]{1024,2000000}+\]")
#: The longest token inside a string, a surrogate pair.
_TOKEN_BYTES = 12


class TooComplex(ValueError):
    """The document has too many parts. The message says which."""


def loads(data: bytes, bounds: Bounds = BOUNDS) -> Any:
    """Parse at once, for documents of a few MB. Raises orjson.JSONDecodeError (a ValueError), TooComplex."""
    if _may_exceed(data, bounds):
        for _ in _scan(data, bounds, None):
            pass
    value = orjson.loads(data)
    if _may_be_deep(data, bounds):
        _check_depth(value, bounds)
    return value


def loads_event(data: bytes) -> Any:
    """Parse one event or line of an engine, `repaired` if it must be. Raises a ValueError."""
    try:
        return loads(data, EVENT_BOUNDS) if len(data) > SMALL_BYTES else orjson.loads(data)
    except orjson.JSONDecodeError:
        return loads(repaired(data), EVENT_BOUNDS)


def loads_with_halves(data: bytes) -> Any:
    """Parse at once, with half a surrogate pair as U+FFFD. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(without_halves(data))


def repaired(data: bytes) -> bytes:
    """An engine's JSON with U+FFFD in place of what orjson refuses in its texts: bytes that are not UTF-8, and `without_halves`."""
    return without_halves(data.decode("utf-8", "replace").encode())


def utf8(data: bytes) -> bytes:
    """A read of a stream with U+FFFD in place of bytes that are not UTF-8, in each line that ends in it. The last line may end
    within a character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            end = data.rfind(b"\n") + 1
            return data[:end].decode("utf-8", "replace").encode() + data[end:]
    return data


def without_halves(data: bytes) -> bytes:
    """JSON with U+FFFD in place of each escape that is half a surrogate pair (`\\ud83d`). An engine may write one, as where it
    cuts a character in two."""
    if b"\0" in data or not (rb"\ud" in data or rb"\uD" in data):
        return data  # it is not JSON, or has no such escape
    marked = data.replace(rb"\\", b"\0\0")  # such a backslash begins no escape
    return _HALF.sub("\ufffd".encode(), marked).replace(b"\0\0", rb"\\")


async def read(data: bytes, bounds: Bounds = BOUNDS) -> Any:
    """Parse a document of any size; the event loop runs between the steps. Raises like `loads`."""
    if len(data) <= SMALL_BYTES:
        return loads(data, bounds)
    long: list[_Long] | None = [] if len(data) > _IN_PLACE_BYTES else None
    if long is not None or _may_exceed(data, bounds):
        await _in_steps(_scan(data, bounds, long))
    value = orjson.loads(data) if long is None else await _in_steps(_read_large(data, long))
    await asyncio.sleep(0)
    _check_depth(value, bounds)
    await asyncio.sleep(0)
    return value


async def read_vectors(data: bytes) -> Any:
    """Like `read`, for embeddings: long lists of numbers are read separately (`LongList`) and count as one value. Such
    a document contains no free text, so one with such a list inside a string is refused."""
    if len(data) <= SMALL_BYTES:
        return loads(data)
    mark = secrets.token_hex(8)
    parts: list[bytes] = []
    vectors: list[LongList] = []
    at = taken = looked = 0
    step_ends_at = perf_counter() + _STEP_S
    while looked <= BOUNDS.members and (start := data.find(b"[", at)) >= 0:
        looked += 1
        at = start + 1
        match = _NUMBERS.match(data, start)
        if match is not None:
            numbers = match.group()
            parts += data[taken:start], b'"%b%d"' % (mark.encode(), len(vectors))
            vectors.append(LongList.of(orjson.loads(numbers), numbers))
            at = taken = match.end()
        if perf_counter() > step_ends_at:
            await asyncio.sleep(0)
            step_ends_at = perf_counter() + _STEP_S
    parts.append(data[taken:])
    value = await read(b"".join(parts))
    if _put_back(value, mark, vectors) < len(vectors):
        raise TooComplex("holds a list of numbers inside a string")
    return value


async def _in_steps(work: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(0)


def _may_exceed(data: bytes, bounds: Bounds) -> bool:
    """Whether a document may exceed a limit. Marks inside strings count here too."""
    if len(data) <= bounds.members:
        return False
    members = data.count(b":") + data.count(b"[") + data.count(b"{")
    return members > bounds.members or data.count(b",") > bounds.values


def _may_be_deep(data: bytes, bounds: Bounds) -> bool:
    return len(data) > bounds.depth and openings(data) > bounds.depth


def _check_depth(value: Any, bounds: Bounds) -> None:
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(bounds.depth):
        if not level:
            return
        level = [
            member
            for each in level
            for member in (each.values() if isinstance(each, dict) else each)
            if isinstance(member, dict | list)
        ]
    if level:
        raise TooComplex(f"is nested more than {bounds.depth} levels deep")


@dataclass(slots=True)
class _Long:
    """A string that is read separately. Its quotes are at `start` and `end`; `cuts` are positions between two of its
    tokens."""

    start: int
    end: int
    cuts: list[int]


def _scan(data: bytes, bounds: Bounds, long: list[_Long] | None) -> Generator[None, None, None]:
    """Count the structure outside of strings, and collect the long strings. Raises TooComplex, and JSONDecodeError for
    a string without an end."""
    at, size = 0, len(data)
    strings = values = members = 0
    outside: list[bytes] = []
    outside_bytes = 0
    step_ends_at = perf_counter() + _STEP_S
    while at < size:
        window_end = min(at + _WINDOW, size)
        quote = data.find(b'"', at, window_end)
        stop = window_end if quote < 0 else quote
        outside.append(data[at:stop])
        outside_bytes += stop - at + 8
        if outside_bytes > _WINDOW or stop == size:
            marks = b"".join(outside)
            outside.clear()
            outside_bytes = 0
            values += marks.count(b",")
            members += marks.count(b":") + marks.count(b"[") + marks.count(b"{")
            if values > bounds.values or strings > bounds.values + bounds.members:
                raise TooComplex(f"holds more than {bounds.values} values")
            if members > bounds.members:
                raise TooComplex(f"holds more than {bounds.members} members, objects and lists")
        at = stop
        if quote >= 0:
            strings += 1
            end = data.find(b'"', quote + 1, quote + _LONG_BYTES)
            if end < 0 or data[end - 1] == _BACKSLASH:
                found = _Long(quote, 0, [])
                yield from _find_end(data, found)
                end = found.end
                if long is not None and end - quote >= _LONG_BYTES:
                    long.append(found)
            at = end + 1
        if perf_counter() > step_ends_at:
            yield
            step_ends_at = perf_counter() + _STEP_S
    if strings > bounds.values + bounds.members:
        raise TooComplex(f"holds more than {bounds.values} values")


def _find_end(data: bytes, string: _Long) -> Generator[None, None, None]:
    at, size = string.start + 1, len(data)
    step_ends_at = perf_counter() + _STEP_S
    while True:
        window_end = min(at + _WINDOW, size)
        match = _INSIDE.match(data, at, window_end)
        stop = at if match is None else match.end()
        if stop < size and data[stop] == _QUOTE:
            string.end = stop
            return
        if window_end == size or stop + _TOKEN_BYTES <= window_end:
            raise orjson.JSONDecodeError("a string has no end or a wrong escape", "", 0)
        for _ in range(3):  # not inside a character
            if data[stop] & 0xC0 == 0x80:
                stop -= 1
        string.cuts.append(stop)
        at = stop
        if perf_counter() > step_ends_at:
            yield
            step_ends_at = perf_counter() + _STEP_S


def _read_large(data: bytes, long: list[_Long]) -> Generator[None, None, Any]:
    """Parse the rest without the long strings, then read these and put them back."""
    rest_bytes = len(data) - sum(each.end - each.start for each in long)
    if rest_bytes > _MAX_REST_BYTES:
        raise TooComplex(f"holds more than {_MAX_REST_BYTES >> 20} MiB beside its long strings")
    mark = secrets.token_hex(8)  # unpredictable, so a document cannot contain it
    parts: list[bytes] = []
    at = 0
    for number, each in enumerate(long):
        parts += data[at : each.start], b'"%b%d"' % (mark.encode(), number)
        at = each.end + 1
    parts.append(data[at:])
    value = orjson.loads(b"".join(parts))
    yield
    texts: list[LongText] = []
    step_ends_at = perf_counter() + _STEP_S
    for each in long:
        text, signs = yield from _text(data, each)
        json = data[each.start : each.end + 1]
        if len(json) > _IN_PLACE_BYTES:
            yield
        texts.append(LongText.of(text, json, signs))
        if len(json) > _IN_PLACE_BYTES:
            yield
        del text
        if perf_counter() > step_ends_at:
            yield
            step_ends_at = perf_counter() + _STEP_S
    if isinstance(value, str):
        return texts[0] if texts else value
    if _put_back(value, mark, texts) < len(texts):
        raise TooComplex("holds a member whose name is too long or stands twice")
    return value


def _text(data: bytes, string: _Long) -> Generator[None, None, tuple[str, Signs]]:
    edges = [string.start + 1, *string.cuts, string.end]
    pieces: list[str] = []
    signs = Signs()
    memory = 1  # bytes of a character
    step_ends_at = perf_counter() + _STEP_S
    for start, end in pairwise(edges):
        json = data[start:end]
        piece: str = orjson.loads(b'"%b"' % json)
        pieces.append(piece)
        signs = Signs.total((signs, Signs.of(json)))
        # Shorter ones do not show how wide their characters are, and need little memory.
        if len(piece) > 1024:
            memory = max(memory, sys.getsizeof(piece) // len(piece))
        if perf_counter() > step_ends_at:
            yield
            step_ends_at = perf_counter() + _STEP_S
    if len(pieces) == 1:
        return pieces[0], signs
    if memory * sum(map(len, pieces)) > _MAX_STRING_MEMORY:
        raise TooComplex("holds a string that is too long for the characters in it")
    text = "".join(pieces)
    yield
    pieces.clear()
    yield
    return text, signs


def _put_back(value: Any, mark: str, taken: Sequence[LongText | LongList]) -> int:
    """Put the separately read strings in their places; returns how many were placed."""
    found, start = 0, len(mark)
    left: list[Any] = [value] if isinstance(value, dict | list) else []
    while left:
        container = left.pop()
        members = list(container.items()) if isinstance(container, dict) else enumerate(container)
        for place, member in members:
            if isinstance(member, str):
                if member.startswith(mark):
                    container[place] = taken[int(member[start:])]
                    found += 1
            elif isinstance(member, dict | list):
                left.append(member)
    return found
