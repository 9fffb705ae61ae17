"""Memory of large bodies is used again: what is given back to the system costs the event loop a fault for each page."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from router.process import keep_freed_memory

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
