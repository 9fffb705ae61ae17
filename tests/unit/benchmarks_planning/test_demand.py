"""How many requests a plan is made for."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.planning.command import add_arguments
from benchmarks.planning.demand import GeneratedDemand, RecordedDemand
from benchmarks.planning.inputs import inputs
from benchmarks.workloads.format import Header, WorkloadRequest, write
from benchmarks.workloads.options import BuildOptions
from tests.unit.benchmarks_planning.made import plan_files


@pytest.mark.parametrize(
    ("rate", "limit", "seconds"), [(200.0, None, 30), (10.0, None, 200), (200.0, 400, 2)]
)
def test_a_stream_lasts_long_enough_to_fill_a_fleet(rate: float, limit: int | None, seconds: float) -> None:
    requests = GeneratedDemand({"m": rate}, "poisson", BuildOptions(), limit).requests(0)
    assert requests[-1].arrival_s == pytest.approx(seconds, rel=0.05)
    assert len(requests) == pytest.approx(rate * seconds, rel=0.2)


@pytest.mark.parametrize(("per_s", "limit", "requests"), [(100, None, 3000), (50, None, 2000), (100, 10, 10)])
def test_so_does_what_is_read_of_a_file(tmp_path: Path, per_s: int, limit: int | None, requests: int) -> None:
    path = tmp_path / "workload.jsonl"
    write(
        path,
        Header("test"),
        (WorkloadRequest(f"r{at}", at / per_s, 8, output_tokens=2) for at in range(4000)),
    )
    assert len(RecordedDemand.read(path, limit).trace) == requests


def test_requests_that_will_come_faster_last_longer(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = [*plan_files(tmp_path, "{gpu: h100-80g, gpus: 2}", "{name: llama-3.2-1b}")]
    line += ["--rates", "llama-3.2-1b=50", "--slo", "ttft_ms=1000"]
    throughput = ["--objective", "throughput"]
    usual, faster, limited, grown = (
        len(inputs(parser.parse_args([*line, *more])).requests)
        for more in (
            [],
            throughput,
            [*throughput, "--limit", "100"],
            [*throughput, "--what-if", "+2xh100-80g"],
        )
    )
    assert usual == pytest.approx(2000, rel=0.1)
    assert faster > 1.5 * usual
    assert grown == pytest.approx(2 * faster, rel=0.1)
    assert limited == pytest.approx(100, rel=0.4)
