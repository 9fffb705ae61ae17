"""Comparisons on a real Ray: the same runs as on this machine's own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from benchmarks.compare.cluster import run_on_ray
from benchmarks.workloads.format import WorkloadError
from router.listening import free_port

SCENARIO = ("--scenario", "split-prices", "--small", "--policies", "price,round_robin", "--rates", "10")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray of one node, in processes of its own that end with the test."""
    address = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *("--node-ip-address", "127.0.0.1", "--port", address.rpartition(":")[2]),
                *("--num-cpus", "2", "--include-dashboard", "false", "--object-store-memory", "100000000"),
                *("--temp-dir", folder, "--disable-usage-stats"),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until_it_answers(head, address)
            yield address
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            try:
                head.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, signal.SIGKILL)
                head.wait()


def wait_until_it_answers(head: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert head.poll() is None, "Ray did not start"
        asked = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address],
            capture_output=True,
            check=False,
            timeout=60,
        )
        if asked.returncode == 0:
            return
        time.sleep(0.5)
    raise AssertionError("Ray does not answer")


def compare(out: Path, *further: str) -> dict:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "router.cli", "compare", *SCENARIO, "--seeds", "2"),
            *("--oracle-seeds", "0", "--out", str(out), *further),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return orjson.loads((out / "report.json").read_bytes())


@pytest.mark.nightly
def test_a_cluster_gives_the_same_runs(cluster: str, tmp_path: Path) -> None:
    here = compare(tmp_path / "here", "--jobs", "1")
    there = compare(tmp_path / "there", "--ray", cluster)
    timed = {"wall_s", "decision_s"}
    assert len(there["runs"]) == 4
    for one, other in zip(here["runs"], there["runs"], strict=True):
        assert {k: v for k, v in one.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }


def double(number: int) -> int:
    if number == 13:
        raise WorkloadError("unlucky")
    return 2 * number


@pytest.mark.nightly
def test_what_a_worker_raises_is_raised_here(cluster: str) -> None:
    assert dict(run_on_ray(double, [1, 2, 3], cluster)) == {0: 2, 1: 4, 2: 6}
    with pytest.raises(WorkloadError, match="unlucky"):
        list(run_on_ray(double, [13], cluster))


def test_no_ray_at_an_address_is_one_line() -> None:
    with pytest.raises(WorkloadError, match=r"^no Ray at 127\.0\.0\.1:1: Connection refused$"):
        list(run_on_ray(double, [1], "127.0.0.1:1"))
