"""Memory of large bodies is used again: what is given back to the system costs the event loop a fault for each page."""

from __future__ import annotations

import subprocess
import sys

from router.process_memory import used_memory

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


SMAPS = """\
55bf99a54000-55bf9b409000 rw-p 00000000 00:00 0                          [heap]
Size:              26324 kB
KernelPageSize:        4 kB
Rss:               23476 kB
VmFlags: rd wr mr mw me ac
7f33d4da0000-7f33d55a0000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                   8 kB
7f33d4800000-7f33d4c00000 r-xp 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
7f33dcc00000-7f33dd200000 rw-p 00001000 fe:01 1234                       /usr/lib/libpython3.11.so
Size:               6144 kB
Rss:                6144 kB
7f33ddf3f000-7f33de23f000 rw-p 00000000 00:00 0
Size:               3072 kB
Rss:                3024 kB
"""


def test_huge_pages_are_for_own_memory_in_use() -> None:
    assert [(hex(start), hex(end)) for start, end in used_memory(SMAPS)] == [
        ("0x55bf99c00000", "0x55bf9b400000"),
        ("0x7f33de000000", "0x7f33de200000"),
    ]


def test_the_memory_of_a_process_is_found() -> None:
    program = """
from pathlib import Path
from router.process_memory import used_memory, use_huge_pages
block = bytearray(b"1") * (16 << 20)
assert any(end - start >= 14 << 20 for start, end in used_memory(Path("/proc/self/smaps").read_text()))
use_huge_pages()
assert block == b"1" * (16 << 20)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
