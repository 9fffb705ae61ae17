"""The report and its files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.compare.files import vllm_json, write_csvs, write_vllm
from benchmarks.compare.report import report
from benchmarks.compare.tables import arrivals_text, capacity_text, short_note, table, three_digits, written

from .made import ABOUT, SHARES, made_report, oracles, run, runs


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return made_report()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_is_json(told: dict[str, Any]) -> None:
    again = orjson.loads(orjson.dumps(told))
    assert again["cells"] == told["cells"]
    assert (again["baseline"], again["policies"]) == ("round_robin", list(SHARES))
    # The load over time is kept of one seed.
    assert {one["seed"] for one in again["runs"] if one["timeline"]} == {0}


def test_the_baseline_is_the_first_policy_without_round_robin() -> None:
    made = [run(policy, 5.0, 0, 0.9) for policy in ("slo", "latency")]
    assert report(made, about=ABOUT, complete=True)["baseline"] == "slo"


def test_the_workloads_own_rate_is_one_rate() -> None:
    made = [{**one, "rate_per_s": None} for one in runs() if one["rate_per_s"] == 10.0]
    told = report(made, about=ABOUT, complete=True)
    assert len(told["rates_per_s"]) == 1
    assert told["rates_per_s"][0] == pytest.approx(10.0, rel=0.1)
    assert len(told["cells"]) == len(SHARES)


def test_the_order_in_which_oracles_end_changes_nothing() -> None:
    """As after a run that went on with an earlier draw."""
    found = [
        {**one, "quality_cost": [{**point, "quality": 0.1 * one["seed"]} for point in one["quality_cost"]]}
        for one in oracles()
    ]
    assert made_report(oracles=found[::-1]) == made_report(oracles=found)


def test_csvs(told: dict[str, Any], tmp_path: Path) -> None:
    write_csvs(tmp_path, told)
    lines = {
        name: read(tmp_path / f"{name}.csv") for name in ("runs", "cells", "outcomes", "curves", "timeline")
    }
    assert len(lines["runs"]) == len(told["runs"])
    assert float(lines["runs"][0]["attainment"]) == told["runs"][0]["attainment"]
    assert lines["runs"][0]["gateway_attainment"] == ""  # unknown is empty
    assert len(lines["cells"]) == 9
    figure = told["cells"][0]["measures"]["ttft_s_p95"]
    assert float(lines["cells"][0]["ttft_s_p95_ci95_half_width"]) == figure["half_width"]
    counted = [int(one["requests"]) for one in lines["outcomes"] if one["name"] == told["runs"][0]["name"]]
    assert sum(counted) == 300
    assert len(lines["curves"]) == 9 * 201
    assert lines["curves"][1]["quantile"] == "0.005"
    assert {one["instance"] for one in lines["timeline"]} == {"h100-0", "l4-0"}


def test_vllms_shape(told: dict[str, Any], tmp_path: Path) -> None:
    write_vllm(tmp_path / "vllm", told)
    files = sorted((tmp_path / "vllm").iterdir())
    assert len(files) == len(told["runs"])
    one = told["runs"][-1]
    data = orjson.loads((tmp_path / "vllm" / f"{one['name']}.json").read_bytes())
    assert data["completed"] + data["failed"] == data["num_prompts"] == 300
    assert data["request_throughput"] == pytest.approx(one["complete"] / one["duration_s"])
    assert data["total_token_throughput"] == pytest.approx(
        (data["total_input_tokens"] + data["total_output_tokens"]) / data["duration"]
    )
    assert data["total_output_tokens"] == one["complete_output_tokens"] < one["output_tokens"]
    assert data["p99_ttft_ms"] == pytest.approx(1000 * one["ttft_s"]["p99"])
    assert {
        f"{key}_{metric}_ms"
        for key in ("mean", "median", "std", "p50", "p99")
        for metric in ("ttft", "tpot", "itl", "e2el")
    } <= set(data)
    assert data["headway_scheduling_overhead_p50_ms"] == pytest.approx(0.2)
    assert data["date"] is None
    live = vllm_json({**one, "started_at": 0.0, "offered_with_slo": 0}, told)
    assert (live["date"], live["request_goodput"]) == ("19700101-000000", None)


def test_the_table_on_the_terminal(told: dict[str, Any]) -> None:
    text = table(told)
    assert max(map(len, text.splitlines())) <= 160
    line = next(line for line in text.splitlines() if line.startswith("slo ") and " 20 " in line)
    figure = told["cells"][-1]["measures"]["attainment"]
    assert f"{100 * figure['mean']:.1f} ±{100 * figure['half_width']:.1f}" in line
    assert "over 3 seeds" in text
    assert "requests/s with 95 % within their SLO" in text
    assert "by gateway" not in text  # nothing is known of it
    for heading in ("timed out before decoding %", "out of budget before decoding %", "cut by budget %"):
        assert heading in text
    cell = told["cells"][-1]
    shares = [cell["outcomes"][name] for name in ("budget_exhausted_mid_decode", "rejected_slo")]
    assert 0 not in shares
    below = text[text.index("timed out before decoding") :]
    ended = next(line for line in below.splitlines() if line.split()[:2] == ["slo", "20"])
    assert ended.split()[-2:] == [f"{100 * share:.1f}" for share in shares]
    assert "cut by budget counts as in time" in text


def test_endings_that_no_run_has_are_left_out() -> None:
    made = [
        {
            **one,
            "outcomes": {"ok": one["requests"]},
            "timed_out_before_decoding": 0,
            "out_of_budget_before_decoding": 0,
        }
        for one in runs()
    ]
    text = table(report(made, about=ABOUT, complete=True))
    assert "cut by budget" not in text
    assert "refused for SLO" not in text


def test_tokens_delivered_stand_beside_the_cost(told: dict[str, Any]) -> None:
    own = [one for one in told["runs"] if (one["policy"], one["rate_per_s"]) == ("slo", 20.0)]
    figure = told["cells"][-1]["measures"]["output_tokens_per_request"]
    assert figure["mean"] == pytest.approx(sum(one["output_tokens"] for one in own) / 900)
    headings = table(told).splitlines()[0]
    assert headings.index("tokens/req") < headings.index("USD/1k")


def bounded(
    bound: str | None,
    low: float | None = None,
    high: float | None = None,
    *seeds: tuple[Any, ...],
    **changes: Any,
) -> dict[str, Any]:
    """A capacity's entry, of seeds with (bound, low, high): by default of one that is alike."""
    names = ("bound", "low_per_s", "high_per_s")
    by_seed = [
        {**dict(zip(names, one, strict=True)), "rate_per_s": None, "missed_per_s": missed}
        for one, missed in zip(seeds or ((bound, low, high),), ([4.0, 8.0], [4.0]), strict=False)
    ]
    return {
        "by_seed": by_seed,
        "missed_per_s": [],
        **dict(zip(names, (bound, low, high), strict=True)),
        **changes,
    }


BELOW_4, BETWEEN, AT_LEAST = ("below", None, 4), ("between", 16, 32), ("at_least", 32, None)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (bounded(None), "-"),
        (bounded("within", 16, 20, rate_per_s={"mean": 17.2, "half_width": 0.31}), "17.2 ±0.3"),
        (bounded(*BETWEEN), "between 16 and 32"),
        (bounded(*AT_LEAST), "at least 32"),
        (bounded(*BELOW_4), "below 4"),
        (bounded("mixed", 16, None, BETWEEN, AT_LEAST), "between 16 and at least 32"),
        (bounded("mixed", None, 8, BELOW_4, ("between", 4, 8)), "between below 4 and 8"),
        (bounded("mixed", None, None, BELOW_4, AT_LEAST), "between below 4 and at least 32"),
        (bounded(*BETWEEN, missed_per_s=[4.0, 8.0]), "between 16 and 32, though not at 4, 8"),
        (
            bounded(*BETWEEN, BETWEEN, BETWEEN, missed_per_s=[4.0, 8.0]),
            "between 16 and 32, though not at 4, though not at 8 in every draw",
        ),
    ],
)
def test_capacity_as_text(entry: dict[str, Any], text: str) -> None:
    known = {"mean": None, "half_width": None}
    assert capacity_text({"rate_per_s": known, **entry}) == text


def test_short_runs_are_told() -> None:
    made = [{**one, "requests": 300, "measured_rate_per_s": one["rate_per_s"]} for one in runs()]
    told = report(made, about=ABOUT, complete=True)
    assert arrivals_text(told) == "15 to 60 s of arrivals a run"
    assert str(short_note(told)).startswith("Short in part: no steady state")
    higher = [{**one, "measured_rate_per_s": 10.0} for one in made]
    assert str(short_note(report(higher, about=ABOUT, complete=True))).startswith("Short: no steady state")
    assert "no steady state" in table(told)
    long = report([{**one, "measured_rate_per_s": 5.0} for one in made], about=ABOUT, complete=True)
    assert (arrivals_text(long), short_note(long)) == ("60 s of arrivals a run", None)
    unknown = report([{**one, "measured_rate_per_s": None} for one in made], about=ABOUT, complete=True)
    assert (arrivals_text(unknown), short_note(unknown)) == (None, None)


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (33.614, 2.09, "33.6 ±2.1"),
        (152.3, 90.3, "152 ±90"),
        (0.05131, 0.00186, "0.0513 ±0.0019"),
        (0.0, 0.5, "0.00 ±0.50"),
        (12.0, 0.0, "12.0 ±0"),
        (12.0, None, "12.0"),
        (None, None, "-"),
    ],
)
def test_digits_follow_the_interval(mean: float | None, half_width: float | None, text: str) -> None:
    assert written({"mean": mean, "half_width": half_width}, three_digits) == text
