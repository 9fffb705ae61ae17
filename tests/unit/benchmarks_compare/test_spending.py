"""What a comparison says of money and of hedges."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.compare.cells import with_savings
from benchmarks.compare.report import report
from benchmarks.compare.summary import summary_of
from benchmarks.compare.tables import table
from benchmarks.measures import is_offered
from benchmarks.simulator.outcomes import OUTCOMES
from tests.unit.benchmarks_compare.made import outcomes, result, runs


def priced(policy: str, seed: int, cost_usd: float | None, rate_per_s: float = 5.0) -> dict[str, Any]:
    """What savings are worked out from."""
    return {"policy": policy, "seed": seed, "rate_per_s": rate_per_s, "cost_usd_per_offered": cost_usd}


def test_cost_is_over_all_that_was_offered() -> None:
    made = result(outcomes(400, 0.4, seed=3))
    told = summary_of(made)
    offered = sum(is_offered(OUTCOMES[code]) for code in made.columns["outcome"])
    assert told["complete"] < offered < 400
    assert told["cost_usd_per_offered"] == pytest.approx(made.columns["cost_usd"].sum() / offered)
    assert told["hedged"] == made.columns["hedged"].sum() > 0


def test_savings_are_paired_draw_by_draw() -> None:
    made = [
        *(priced("round_robin", seed, cost) for seed, cost in enumerate((4.0, 8.0))),
        *(priced("price", seed, cost) for seed, cost in enumerate((3.0, 4.0))),
        priced("price", 2, 1.0),  # the baseline has no such draw
        priced("price", 0, 1.0, rate_per_s=9.0),
        priced("slo", 0, None),
    ]
    saved = [run["saved_share"] for run in with_savings(made, "round_robin")]
    assert saved == [None, None, 0.25, 0.5, None, None, None]


def test_a_baseline_that_costs_nothing_leaves_nothing_to_save() -> None:
    made = [priced("round_robin", 0, 0.0), priced("price", 0, 0.0)]
    assert [run["saved_share"] for run in with_savings(made, "round_robin")] == [None, None]


def test_the_report_tells_them_with_intervals() -> None:
    told = report(runs(), about={"model": "auto", "slo": None}, complete=True)
    by_name = {(cell["policy"], cell["rate_per_s"]): cell["measures"] for cell in told["cells"]}
    saved = by_name["slo", 5.0]["saved_share"]
    own = [run["saved_share"] for run in told["runs"] if (run["policy"], run["rate_per_s"]) == ("slo", 5.0)]
    assert saved["mean"] == pytest.approx(sum(own) / 3)
    assert saved["half_width"] > 0
    assert by_name["round_robin", 5.0]["saved_share"]["mean"] is None
    assert by_name["slo", 5.0]["hedged_share"]["mean"] == pytest.approx(27 / 300)
    assert by_name["slo", 5.0]["quality_mean"]["half_width"] > 0
    text = table(told)
    for heading in ("USD/1k offered", "saved %", "hedged %", "quality"):
        assert heading in text
