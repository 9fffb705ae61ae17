"""The experiment on scalers: its oracle, its choice of settings, its table."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.scaling.__main__ import INSTANCES, _chosen
from benchmarks.scaling.cases import DAY_RATE_PER_S, case
from benchmarks.scaling.oracle import OracleScaler
from benchmarks.scaling.report import of_case, rows
from benchmarks.scaling.run import Trial, run
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from policies.scaling.capacity import slo_capacity
from tests.unit.policies_scaling.cases import pool, seen


def row(scaler, draw, attainment, gpu_hours, **settings):
    return {
        "case": "made",
        "draw": draw,
        "scaler": scaler,
        "settings": settings,
        "attainment": attainment,
        "gpu_hours": gpu_hours,
        "usd": gpu_hours / 2,
        "retried": 0,
        "drained": 1,
    }


def test_the_oracle_starts_instances_in_time():
    one = pool(cold_start_s=60.0)
    busy = [WorkloadRequest(f"r{at}", 600.0 + at * 0.1, 1000, output_tokens=200) for at in range(3000)]
    scaler = OracleScaler(one, busy, 1000.0)
    assert scaler.desired(seen(1000.0 + 500.0, 1))["p"] == 0
    wanted = scaler.desired(seen(1000.0 + 600.0, 1))["p"]
    assert wanted == scaler.desired(seen(1000.0 + 700.0, 1))["p"]
    assert wanted == pytest.approx(10.0 / slo_capacity(one, 1000, 200).rate_per_s, abs=2)
    assert scaler.desired(seen(1000.0 + 5000.0, 1))["p"] == 0


def test_the_cheapest_settings_that_keep_the_attainment_are_chosen():
    static = [row("none", 100, 0.99, 70.0)]
    kpa = [
        row("kpa", 100, 0.985, 60.0, u=1),
        row("kpa", 100, 0.981, 50.0, u=2),
        row("kpa", 100, 0.97, 40.0, u=3),
    ]
    assert _chosen([*static, *kpa])["made"]["kpa"] == {"u": 2}
    assert _chosen([*static, *kpa[2:]])["made"]["kpa"] == {"u": 3}  # none keeps it


def test_the_table_pairs_draws():
    runs = [
        *(row("none", draw, 0.99, 70.0) for draw in (1, 2)),
        *(row("queue", draw, 0.98, 50.0 + draw, t=0) for draw in (1, 2)),
        *(row("headway", draw, 0.985, 0.5 * (50.0 + draw), m=1) for draw in (1, 2)),
        *(row("headway", draw, 0.985, 60.0) for draw in (1, 2)),
    ]
    report = {"runs": runs, "tuned": {"made": {"queue": {"t": 0}, "headway": {"m": 1}}}}
    by_label = {each["scaler"]: each for each in rows(report)}
    assert list(by_label) == ["none", "queue", "headway", "headway (default)"]
    assert by_label["headway"]["saved"]["queue"].mean == pytest.approx(0.5)
    assert by_label["headway"]["saved"]["queue"].half_width == pytest.approx(0.0, abs=1e-9)
    assert by_label["headway"]["kept"].mean == pytest.approx(0.985 / 0.99)
    assert of_case(report, "made").count("\n| ") == 5


def test_the_made_day_has_a_past_and_the_same_draw_again():
    made, again = case("made", 3, "m", None), case("made", 3, "m", None)
    assert made == again
    assert len(made.past) == 2 * 144
    assert made.past[-1].now_s == made.epoch_s
    arrivals = [each.arrival_s for each in made.requests]
    assert arrivals == sorted(arrivals)
    assert 0.5 * DAY_RATE_PER_S < len(arrivals) / made.day_s < 2 * DAY_RATE_PER_S


def test_a_published_case_needs_data():
    with pytest.raises(WorkloadError, match="needs data"):
        case("azure_conv", 1, "m", None)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif("HEADWAY_DATA" not in os.environ, reason="needs published sets")
def test_the_documented_runs_hold() -> None:
    """The first draw of each scaler."""
    data = Path(os.environ["HEADWAY_DATA"])
    kept = json.loads((Path(__file__).parents[3] / "docs/scaling.json").read_text())["runs"]
    for told in (each for each in kept if each["draw"] == 1):
        case, scaler = told["case"], told["scaler"]
        found = run(Trial(case, 1, scaler, INSTANCES[case], told["settings"], data))
        assert found["attainment"] == pytest.approx(told["attainment"], abs=0.005), told
        assert found["gpu_hours"] == pytest.approx(told["gpu_hours"], rel=0.02), told
        assert found["retried"] == 0
