"""Prometheus' text format 0.0.4, made in pieces.

A page may have a hundred thousand lines, and nothing else is served while lines are made. So families yield their lines in
small pieces, and the event loop runs between the pieces (`Page.of`).
"""

from __future__ import annotations

import asyncio
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import isfinite, isnan
from typing import NamedTuple, Self

from router.core.histogram import Histogram

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Time between two turns of the event loop while a page is made.
_TURN_S = 0.002
#: Series summed, or lines made, in one piece.
_PIECE = 100
#: Bytes written at once.
_PIECE_BYTES = 64 * 1024

Labels = tuple[str, ...]


class Family(NamedTuple):
    """One family. `name` and `kind` are those of its TYPE line. `samples` makes its lines in pieces; an empty piece only
    lets the event loop run."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[str], Iterator[str]]

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.text}\n# TYPE {self.name} {self.kind}\n"


def gauge(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> Family:
    """A family of current values."""
    return Family(name, "gauge", text, labels, lambda more: _lines(name, labels, values, more))


def counter(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> Family:
    """A counter: values with the same labels are summed. `name` is without `_total`."""
    full = f"{name}_total"

    def samples(more: str) -> Iterator[str]:
        sums: dict[Labels, float] = {}
        for number, (key, value) in enumerate(values):
            sums[key] = sums.get(key, 0.0) + value
            if number % _PIECE == 0:
                yield ""
        yield from _lines(full, labels, sums.items(), more)

    return Family(full, "counter", text, labels, samples)


def histogram(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, Histogram]]) -> Family:
    """A histogram: counts with the same labels are summed; empty ones are left out."""

    def samples(more: str) -> Iterator[str]:
        sums: dict[Labels, Histogram] = {}
        for number, (key, one) in enumerate(values):
            if any(one.counts):
                known = sums.get(key)
                if known is None:
                    known = sums[key] = Histogram(one.bounds)
                known.add(one)
            if number % _PIECE == 0:
                yield ""
        for key, one in sums.items():
            text = _labels(labels, key, more)
            begin = f'{name}_bucket{{{text}{"," if text else ""}le="'
            bounds = [*map(repr, one.bounds), "+Inf"]
            counts = list(accumulate(one.counts))
            lines = [f'{begin}{bound}"}} {count}.0\n' for bound, count in zip(bounds, counts, strict=True)]
            around = f"{{{text}}}" if text else ""
            lines.append(f"{name}_count{around} {counts[-1]}.0\n")
            lines.append(f"{name}_sum{around} {_number(one.total)}\n")
            yield "".join(lines)

    return Family(name, "histogram", text, labels, samples)


def _lines(name: str, labels: Labels, values: Iterable[tuple[Labels, float]], more: str) -> Iterator[str]:
    lines: list[str] = []
    for key, value in values:
        text = _labels(labels, key, more)
        lines.append(f"{name}{{{text}}} {_number(value)}\n" if text else f"{name} {_number(value)}\n")
        if len(lines) == _PIECE:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def _labels(names: Labels, values: Labels, more: str) -> str:
    """The text between braces, ordered by label; `more` is text of further labels."""
    labels = sorted([f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)])
    return ",".join([more, *labels] if more else labels)


def _number(value: float) -> str:
    if isfinite(value):
        return repr(float(value))
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Page:
    """A page to be sent: families by name, each with its head and pieces of its lines."""

    def __init__(self) -> None:
        self.families: dict[str, tuple[bytes, list[bytes]]] = {}

    @classmethod
    async def of(cls, families: Iterable[Family], more: str = "") -> Self:
        """Make a page; the event loop runs in between. `more` is a label for all samples (`worker="0"`)."""
        page = cls()
        clock = time.perf_counter
        until = clock() + _TURN_S
        for family in families:
            lines = page.lines(family.name, family.head.encode())
            waiting, size = [], 0
            for piece in family.samples(more):
                waiting.append(piece)
                size += len(piece)
                if size >= _PIECE_BYTES:
                    lines.append("".join(waiting).encode())
                    waiting, size = [], 0
                if clock() >= until:
                    await asyncio.sleep(0)
                    until = clock() + _TURN_S
            lines.append("".join(waiting).encode())
        return page

    def lines(self, name: str, head: bytes) -> list[bytes]:
        """The list of a family's lines, to add more. `head` is used for a new family."""
        return self.families.setdefault(name, (head, []))[1]

    def pieces(self) -> Iterator[bytes]:
        """All pieces of the page in order."""
        for head, lines in self.families.values():
            yield head
            yield from lines


# --- pages of several workers ----------------------------------------------------------------------------
def merge(pages: Iterable[Page]) -> Page:
    """Several pages, each with its own label, as one: each family appears once, as the format requires. The sum over the label
    is the gateway's count. A restarted worker begins its series again, which `rate()` and `increase()` handle; counters that
    were summed here would seem to fall."""
    merged = Page()
    for page in pages:
        for name, (head, lines) in page.families.items():
            merged.lines(name, head).extend(lines)
    return merged


async def pack(page: Page) -> list[list[str]]:
    """A page to send to another process. It is compressed, in a thread: reading a long page would hold both event loops."""

    def packed() -> list[list[str]]:
        found = []
        for name, (head, lines) in page.families.items():
            compress = zlib.compressobj(1)
            data = b"".join([*map(compress.compress, lines), compress.flush()])
            found.append([name, head.decode(), b64encode(data).decode()])
        return found

    return await asyncio.to_thread(packed)


async def unpack(packed: Iterable[Sequence[str]]) -> Page:
    """A page from `pack`."""

    def unpacked() -> Page:
        page = Page()
        for name, head, data in packed:
            lines = page.lines(name, head.encode())
            decompress, left = zlib.decompressobj(), b64decode(data)
            while piece := decompress.decompress(left, _PIECE_BYTES):
                lines.append(piece)
                left = decompress.unconsumed_tail
        return page

    return await asyncio.to_thread(unpacked)
