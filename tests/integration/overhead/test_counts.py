"""The hot path does no more for a request, a chunk or a decision than it did at the last change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from benchmarks.overhead.counts import FILE, PARTS, python
from predictors import kernels

#: The share by which a count may be higher. What a gateway has learned depends on real times, and what is allocated also on
#: what the interpreter's free lists hold; the other counts are the same in every run.
_SLACK = {"json_request": 0.01, "streamed_chunk": 0.01}
_SLACK_ALLOCATIONS = 0.02
_TRIES = 3

COMMITTED: dict[str, Any] = orjson.loads(FILE.read_bytes())


@pytest.mark.skipif(COMMITTED["python"] != python(), reason=f"the counts are those of {COMMITTED['python']}")
@pytest.mark.skipif(kernels.WHY_NOT_NATIVE is not None, reason="the counts are those of the compiled kernels")
@pytest.mark.parametrize("part", PARTS)
def test_no_count_has_risen(part: str) -> None:
    # What runs in the background of a busy machine adds to the counts, never the other way.
    least: dict[tuple[str, str], float] = {}
    for _ in range(_TRIES):
        for count, value in _counts(part):
            least[count] = min(value, least.get(count, value))
        risen = [text for (step, name), value in least.items() if (text := _risen(step, name, value))]
        if not risen:
            return
    pytest.fail(f"{risen}; if it must be: python -m benchmarks.overhead.counts --write")


def _counts(part: str) -> Iterator[tuple[tuple[str, str], float]]:
    command = [sys.executable, "-m", "benchmarks.overhead.counts", part]
    done = subprocess.run(command, capture_output=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr.decode()
    for step, counts in orjson.loads(done.stdout)["steps"].items():
        for name, value in counts.items():
            yield (step, name), value


def _risen(step: str, name: str, value: float) -> str | None:
    committed = COMMITTED["steps"][step][name]
    slack = _SLACK_ALLOCATIONS if name == "allocations" else _SLACK.get(step, 0.0)
    risen = value > committed * (1 + slack) + (name == "allocations")
    return f"{step}: {name} {committed} -> {value}" if risen else None


def test_every_step_is_committed() -> None:
    assert set(COMMITTED["steps"]) == {
        *("decision", "simulated_request"),
        *("json_request", "streamed_chunk", "metered_request"),
    }
    assert all(counts["calls"] > 0 and counts["allocations"] > 0 for counts in COMMITTED["steps"].values())
