"""An interrupted comparison keeps what it finished, leaves no process behind, and goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.workloads.format import Header, WorkloadRequest, write
from router.cli import main
from tests.processes import children, is_running

_PATIENCE_S = 100.0
#: So many that none of the comparisons ends before it is interrupted.
SEEDS = 6
FLEET = """
models:
  - {name: llama-3.1-8b, context_tokens: 16384, price: {input_usd_per_mtok: 0.03, output_usd_per_mtok: 0.05}}
instances:
  - {name: a, kind: emulated, profile: llama-3.1-8b@h100-80g, serves: {llama-3.1-8b: llama-3.1-8b}}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    write(
        tmp_path / "w.jsonl",
        Header("test"),
        (WorkloadRequest(f"r{at}", at * 0.5, 200, output_tokens=30) for at in range(200)),
    )
    return [
        *(sys.executable, "-m", "router.cli", "compare", "--oracle-seeds", "0", "--jobs", "2"),
        *("--workload", str(tmp_path / "w.jsonl"), "--fleet", str(tmp_path / "fleet.yaml")),
        *("--policies", "random,least_load,latency,slo", "--seeds", str(SEEDS)),
        *("--out", str(tmp_path / "out")),
    ]


@contextmanager
def begun(words: list[str], out: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison that has reported a run and has more to do; in a process group of its own. It reports a run after its
    file is there, and before the next one's."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until(lambda: len(finished(out)) > 1 or process.poll() is not None)
        yield process


def finished(out: Path) -> set[str]:
    return {file.stem for file in out.glob("runs/*#*.json")}


def until(true: Any) -> None:
    ends_at = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def goes_on(words: list[str], out: Path) -> None:
    """The same command does what is missing, and nothing else. How many processes do it is of no account."""
    kept = {file: file.stat().st_mtime_ns for file in out.glob("runs/*#*.json")}
    assert 0 < len(kept) < 4 * SEEDS
    assert main([*words[3:], "--jobs", "1"]) == 0
    report = orjson.loads((out / "report.json").read_bytes())
    assert report["complete"]
    assert len(report["runs"]) == 4 * SEEDS
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_ctrl_c_keeps_what_is_finished(words: list[str], tmp_path: Path) -> None:
    """On a terminal it goes to the whole group."""
    out = tmp_path / "out"
    with begun([*words, "--seeds", "100"], out) as process:
        workers = children(process.pid)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)
        shown, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted; what is done is written" in shown
    assert errors == ""
    until(lambda: not any(map(is_running, workers)))
    report = orjson.loads((out / "report.json").read_bytes())
    assert not report["complete"]
    assert {run["name"] for run in report["runs"]} <= finished(out)
    assert report["runs"]


@pytest.mark.usefixtures("undrawn")
def test_a_kill_leaves_no_process_and_no_half_a_run(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun(words, out) as process:
        workers = children(process.pid)
        process.kill()
        process.wait(timeout=_PATIENCE_S)
        until(lambda: not any(map(is_running, workers)))
    for file in out.glob("runs/*.json"):
        orjson.loads(file.read_bytes())
    goes_on(words, out)


@pytest.mark.usefixtures("undrawn")
def test_sigterm_on_one_process(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun([*words, "--jobs", "1"], out) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, errors) == (130, "")
    goes_on(words, out)
