"""What a SIGKILL loses can be measured; the figures are in docs/performance.md."""

from __future__ import annotations

import re

import pytest

from benchmarks.overhead import kills


@pytest.mark.nightly
def test_a_kill_loses_the_newest_rows_only(capsys: pytest.CaptureFixture[str]) -> None:
    # Ten times the promise: this machine may do other work.
    assert kills.main(["--kills", "2", "--promise-ms", "2000"]) == 0
    lost = re.findall(r"lost rows: median \d+, most (\d+)", capsys.readouterr().out)
    assert len(lost) == 3
    assert all(int(most) < 2 * 200 for most in lost)
