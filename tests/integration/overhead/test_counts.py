"""The hot path does no more for a request, a chunk or a decision than it did at the last change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest

from benchmarks.overhead.counts import FILE, PARTS, python
from predictors import kernels

#: The share by which a count may be higher. What a gateway has learned depends on real times, and what is allocated also on
#: what the interpreter's free lists hold; the other counts are the same in every run.
_SLACK = {"json_request": 0.01, "streamed_chunk": 0.01}
_SLACK_ALLOCATIONS = 0.02

COMMITTED: dict[str, Any] = orjson.loads(FILE.read_bytes())


@pytest.mark.skipif(COMMITTED["python"] != python(), reason=f"the counts are those of {COMMITTED['python']}")
@pytest.mark.skipif(kernels.WHY_NOT_NATIVE is not None, reason="the counts are those of the compiled kernels")
@pytest.mark.parametrize("part", PARTS)
def test_no_count_has_risen(part: str) -> None:
    command = [sys.executable, "-m", "benchmarks.overhead.counts", part]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    risen = []
    for step, counts in orjson.loads(done.stdout)["steps"].items():
        for name, value in counts.items():
            committed = COMMITTED["steps"][step][name]
            slack = _SLACK_ALLOCATIONS if name == "allocations" else _SLACK.get(step, 0.0)
            if value > committed * (1 + slack) + (name == "allocations"):
                risen.append(f"{step}: {name} {committed} -> {value}")
    assert not risen, f"{risen}; if it must be: python -m benchmarks.overhead.counts --write"


def test_every_step_is_committed() -> None:
    assert set(COMMITTED["steps"]) == {"decision", "simulated_request", "json_request", "streamed_chunk"}
    assert all(counts["calls"] > 0 and counts["allocations"] > 0 for counts in COMMITTED["steps"].values())
