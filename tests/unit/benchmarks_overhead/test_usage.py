"""CPU time and memory of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.overhead import usage


def test_a_busy_child_is_found_and_its_cpu_time_counted() -> None:
    code = "import sys\nprint('on', flush=True)\nx = 0\nwhile True: x += 1"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"on\n"
            assert child.pid in usage.tree(os.getpid())
            before = usage.cpu_s([child.pid])
            until = time.monotonic() + 60
            while usage.cpu_s([child.pid]) < before + 0.05 and time.monotonic() < until:
                time.sleep(0.02)
            assert usage.cpu_s([child.pid]) >= before + 0.05
            memory = usage.memory([child.pid])
            assert memory["rss_mib"] > 1
            assert memory["pss_mib"] is None or 0 < memory["pss_mib"] <= memory["rss_mib"] + 1
        finally:
            child.kill()
    assert usage.cpu_s([child.pid]) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:01.25\n", 1.25), ("02:03", 123), ("1:02:03", 3723), ("2-01:00:00", 176_400), ("", 0)],
)
def test_clock_times_of_ps_are_read(text: str, seconds: float) -> None:
    assert usage.clock_s(text) == seconds
