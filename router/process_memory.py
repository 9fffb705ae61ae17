"""Settings of glibc and Linux for the memory of a gateway's process. On other systems they change nothing."""

from __future__ import annotations

import ctypes
import os
import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Settings of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 256 * 1024 * 1024
#: Advice of Linux's madvise: huge pages may be used (since 2.6.38), and at once for what is there (since 6.1).
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE_PAGE = 2 * 1024 * 1024
#: A huge page is worth its memory where at least this share of it is used.
_LEAST_USED = 0.9
#: A mapping of the process's own memory in /proc/self/maps: start and end.
_OWN_MEMORY = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def keep_freed_memory() -> None:
    """Make glibc keep the freed memory of large bodies. By default it returns blocks of 32 MiB to the system at once, and
    each copy of a body then blocks the event loop for 20 to 90 ms while the system maps 8192 new pages. With kept memory
    it takes 5 ms."""
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)  # what the start freed goes back first
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def use_huge_pages() -> None:
    """Ask Linux for pages of 2 MiB for the memory that is used now. The processor looks up fewer of them, so a request takes
    less time, most of all after a pause (docs/performance.md)."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for start in used_blocks():
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE), advice)


def used_blocks() -> Iterator[int]:
    """The starts of those `own_blocks` that are nearly full. In others a huge page would allocate freed memory again."""
    page = os.sysconf("SC_PAGESIZE")
    pages = _HUGE_PAGE // page
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start in own_blocks(Path("/proc/self/maps").read_text()):
            pagemap.seek(start // page * 8)
            # The highest bit, the sign, says whether a page is used.
            entries = array("q", pagemap.read(pages * 8))
            if sum(entry < 0 for entry in entries) >= _LEAST_USED * pages:
                yield start


def own_blocks(maps: str) -> Iterator[int]:
    """The starts of all blocks of a huge page's size in the process's own memory."""
    for mapping in _OWN_MEMORY.finditer(maps):
        first = -(-int(mapping[1], 16) // _HUGE_PAGE) * _HUGE_PAGE
        yield from range(first, int(mapping[2], 16) - _HUGE_PAGE + 1, _HUGE_PAGE)
