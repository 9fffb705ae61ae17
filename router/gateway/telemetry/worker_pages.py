"""One metrics page from the pages of several workers.

Each sample has the label `worker`, and each family appears once, as Prometheus' text format 0.0.4 requires. The sum over
the label is the gateway's count. A restarted worker begins its series again, which `rate()` and `increase()` handle;
counters that were summed here would seem to fall.
"""

from __future__ import annotations

import asyncio
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence

from router.gateway.telemetry.exposition import PIECE_BYTES, Page


def merge(pages: Iterable[Page]) -> Page:
    """Several pages, each with its own label, as one."""
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
            while piece := decompress.decompress(left, PIECE_BYTES):
                lines.append(piece)
                left = decompress.unconsumed_tail
        return page

    return await asyncio.to_thread(unpacked)
