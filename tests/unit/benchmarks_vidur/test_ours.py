"""Our simulator's side: what its process writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.engine import profile
from benchmarks.vidur import ours
from benchmarks.vidur.case import PROFILE, TraceRequest, write_trace


def simulate(requests: list[TraceRequest], replicas: int, folder: Path) -> dict[str, list[float]]:
    write_trace(requests, folder / "trace.csv")
    ours.main(str(folder / "trace.csv"), str(replicas), str(folder / "outcome.json"))
    told: dict[str, list[float]] = json.loads((folder / "outcome.json").read_bytes())
    return told


def test_a_lone_request_takes_what_its_profile_says(tmp_path: Path) -> None:
    told = simulate([TraceRequest(1.0, 600, 1)], 1, tmp_path)
    assert told["ttft_s"] == told["e2e_s"] == [pytest.approx(profile(PROFILE).prefill_s(600))]


def test_round_robin_spreads_requests_over_the_replicas(tmp_path: Path) -> None:
    together = [TraceRequest(1.0, 2048, 1)] * 2
    shared = simulate(together, 1, tmp_path)["ttft_s"]
    apart = simulate(together, 2, tmp_path)["ttft_s"]
    assert shared[1] > 1.5 * shared[0]
    assert apart == [pytest.approx(shared[0])] * 2


def test_a_long_queue_loses_no_request(tmp_path: Path) -> None:
    told = simulate([TraceRequest(0.5, 1000, 20)] * 900, 1, tmp_path)
    assert len(told["e2e_s"]) == 900
    assert all(end > first for first, end in zip(told["ttft_s"], told["e2e_s"], strict=True))
