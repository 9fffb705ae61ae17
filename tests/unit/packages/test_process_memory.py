"""Memory of large bodies is used again: what is given back to the system costs the event loop a fault for each page."""

from __future__ import annotations

import subprocess
import sys

from router.process_memory import own_blocks

PROGRAM = """
import resource
from router.process_memory import keep_freed_memory

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
bytes(bytearray(32 << 20))
before = faults()
for _ in range(4):
    bytes(bytearray(32 << 20))
print(faults() - before)
"""


def test_a_second_large_body_needs_no_fresh_memory() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 4000  # without it 65536


MAPS = """\
55bf99a54000-55bf9b409000 rw-p 00000000 00:00 0                          [heap]
7f33d4800000-7f33d4c00000 r-xp 00000000 00:00 0
7f33dcc00000-7f33dd200000 rw-p 00001000 fe:01 1234                       /usr/lib/libpython3.11.so
7f33ddf3f000-7f33de23f000 rw-p 00000000 00:00 0
7f33de400000-7f33de5ff000 rw-p 00000000 00:00 0
"""


def test_huge_pages_are_for_own_memory() -> None:
    heap = [hex(start) for start in range(0x55BF99C00000, 0x55BF9B400000, 2 << 20)]
    assert [hex(start) for start in own_blocks(MAPS)] == [*heap, "0x7f33de000000"]


def test_huge_pages_are_for_memory_in_use() -> None:
    program = """
import mmap
from router.process_memory import used_blocks, use_huge_pages

def blocks(size: int) -> int:
    before = set(used_blocks())
    with mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, 16 << 20, 4096 * size):
            memory[page] = 1
        found = len(set(used_blocks()) - before)
        use_huge_pages()
        assert sum(memory[:]) == (16 << 20) // 4096 // size
        return found

assert blocks(1) >= 7
assert blocks(2) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)
