"""How the C library and Linux keep the memory of a gateway's process. Where they are others, nothing is changed."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Settings of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 256 * 1024 * 1024
#: Advice of Linux's madvise: huge pages may be used (since 2.6.38), and at once for what is there (since 6.1).
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE_PAGE = 2 * 1024 * 1024
#: A mapping of the process's own memory in /proc/self/smaps: start, end, and how many KiB of it are used.
_OWN_MEMORY = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?\n(?:(?!Rss:).*\n)*Rss: +(\d+) kB",
    re.MULTILINE,
)


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
        for start, end in used_memory(Path("/proc/self/smaps").read_text()):
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def used_memory(smaps: str) -> Iterator[tuple[int, int]]:
    """Start and end of the huge pages in mappings that are used to more than a half: not the stacks of threads, of which
    little is used."""
    for mapping in _OWN_MEMORY.finditer(smaps):
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        first, last = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if last > first and 2 * 1024 * int(mapping[3]) > end - start:
            yield first, last
