"""What `headway workload show` says and draws."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.measures import coefficient_of_variation
from benchmarks.workloads import describe, sketch
from benchmarks.workloads.format import Header, WorkloadRequest, write
from tests.commands import Headway

MIXED = [
    WorkloadRequest(
        "a0",
        0.0,
        100,
        prompt="x",
        output_tokens={"small": 10, "large": 30},
        quality={"small": 0.5, "large": 1.0},
        source="texts",
        routing={"max_cost_usd": 0.001, "policy": "cost"},
    ),
    WorkloadRequest("b0", 1.0, 3000, output_tokens=7, prefix_hashes=(1, 2), source="trace"),
    WorkloadRequest(
        "a1", 2.0, 90, prompt="y", output_tokens={"small": 20}, quality={"small": 0.0}, source="texts"
    ),
    WorkloadRequest("b1", 4.0, 700, prefix_hashes=(1, 5), source="trace", routing={"slo": {"ttft_ms": 9.0}}),
]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    write(path, Header("texts + trace", requests=len(MIXED)), MIXED)
    return path


def test_numbers_of_the_whole_of_models_and_of_sources(mixed: Path, headway: Headway) -> None:
    told = headway.json("workload", "show", mixed)
    assert told["requests"] == 4
    found = told["output_tokens_by_model"]
    assert found == {"small": {"count": 2, "mean": 15.0}, "large": {"count": 1, "mean": 30.0}}
    assert told["quality_by_model"]["small"] == {"count": 2, "mean": 0.25}
    assert told["mean_budget_usd"] == 0.001
    assert told["prefix_blocks_seen_before_share"] == 0.25
    assert told["gap_cv"] == pytest.approx(coefficient_of_variation([1.0, 1.0, 2.0]))
    assert set(told["sources"]) == {"texts", "trace"}
    assert told["sources"]["trace"]["prompt_tokens"]["max"] == 3000
    assert told["sources"]["trace"]["quality_by_model"] is None
    assert told["sources"]["texts"]["policies"] == {"cost": 1}


def test_the_text_draws_arrivals_and_lengths_and_each_source(mixed: Path, headway: Headway) -> None:
    lines = headway.out("workload", "show", mixed).splitlines()
    assert sum(line.startswith("arrivals ") for line in lines) == 3
    assert any("small" in line and "mean output 15 tokens, mean quality 0.250" in line for line in lines)
    assert any(line.startswith("--- trace: 50.0 % of requests") for line in lines)
    assert any("2,048-4,095" in line and "25.0 %" in line for line in lines)
    assert any(line.startswith("budget") or "budget 1, mean 0.001 USD" in line for line in lines)


def test_one_source_is_told_once(tmp_path: Path, headway: Headway) -> None:
    path = tmp_path / "w.jsonl"
    write(path, Header("texts"), [each for each in MIXED if each.source == "texts"])
    assert "sources" not in headway.json("workload", "show", path)
    write(path, Header("nothing"), [])
    assert "requests   0" in headway.out("workload", "show", path)


def test_the_figure_is_written(mixed: Path, tmp_path: Path, headway: Headway) -> None:
    assert "plot written" in headway.out("workload", "show", mixed, "--out", tmp_path / "w.png")
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    assert ".png, .svg or .pdf" in headway.err("workload", "show", mixed, "--out", tmp_path / "w.txt", code=2)


def test_requests_pass_while_they_are_described() -> None:
    passing = describe.passing(iter(MIXED), describe.Description())
    assert list(itertools.islice(passing, 2)) == MIXED[:2]
    assert describe.describe(MIXED).requests == 4


def test_sparkline() -> None:
    assert sketch.sparkline([0, 1, 4, 8]) == " ▁▅█".replace("▁", sketch.sparkline([1, 8])[0])
    assert sketch.sparkline([0, 0]) == "  "
    assert sketch.sparkline([]) == ""


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, "    "), (1.0, "████"), (0.5, "██  "), (0.0001, "▏   "), (0.375, "█▌  ")]
)
def test_bar(share: float, expected: str) -> None:
    assert sketch.bar(share, 4) == expected


def test_rates_over_time_and_doublings() -> None:
    rates, width_s = sketch.per_second([10.0, 10.5, 12.0, 14.0], 4)
    assert (rates, width_s) == ([2.0, 0.0, 1.0, 1.0], 1.0)
    assert sketch.per_second([], 3) == ([0.0, 0.0, 0.0], 0.0)
    rates, width_s = sketch.per_second([1.7e9, 1.7e9], 4)  # at one moment, in seconds since the epoch
    assert [rate * width_s for rate in rates] == pytest.approx([2, 0, 0, 0])
    assert sketch.doublings([1, 2, 3, 4, 1023, 1024]) == {0: 1, 1: 2, 2: 1, 9: 1, 10: 1}


def test_histograms_stand_side_by_side() -> None:
    lines = sketch.histograms({"in": [1, 5, 5, 6], "out": [2]}, width=4)
    assert [line.split() for line in lines] == [
        ["tokens", "in", "out"],
        ["1", "█▍", "25.0", "%"],
        ["2-3", "████", "100.0", "%"],
        ["4-7", "████", "75.0", "%"],
    ]
    assert sketch.histograms({"in": []}) == []
