"""A simulated run in numbers: the same definitions as everywhere else, on columns."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.compare.summary import live_summary, summary_of
from benchmarks.measures import Summary, attainment, mean_rate, offered_period_s, quantile
from benchmarks.replay.row import Row
from benchmarks.simulator.outcomes import OUTCOMES, Result

from .made import outcomes, result


@pytest.fixture(scope="module")
def made() -> Result:
    return result(outcomes(500, 0.5), seed=3)


def rows_of(made: Result) -> list[Row]:
    """The same requests as a client saw them."""
    columns = made.columns

    def known(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    rows = []
    for index in range(len(made)):
        outcome = OUTCOMES[columns["outcome"][index]]
        rows.append(
            Row(
                id=str(index),
                scheduled_s=float(columns["arrival_s"][index]),
                sent_s=float(columns["arrival_s"][index]),
                complete=outcome in ("ok", "late", "budget_exhausted_mid_decode"),
                ttft_s=known(columns["ttft_s"][index]),
                tpot_s=known(columns["tpot_s"][index]),
                e2e_s=known(columns["e2e_s"][index]),
                prompt_tokens=int(columns["prompt_tokens"][index]),
                output_tokens=int(columns["output_tokens"][index]),
                headway={
                    "attempts": int(columns["attempts"][index]),
                    "cost_usd": float(columns["cost_usd"][index]),
                },
                outcome=outcome,
                met=None if columns["met"][index] == 2 else bool(columns["met"][index]),
            )
        )
    return rows


def test_attainment_and_goodput_are_those_of_the_measures(made: Result) -> None:
    columns = made.columns
    judged = [
        (OUTCOMES[code], None if met == 2 else met == 1)
        for code, met in zip(columns["outcome"], columns["met"], strict=True)
    ]
    arrivals_s = columns["arrival_s"].tolist()
    expected = attainment(judged, offered_period_s(arrivals_s))
    told = summary_of(made)
    assert expected["offered_with_slo"] < 500
    assert {name: told[name] for name in expected} == pytest.approx(expected)
    assert told["measured_rate_per_s"] == pytest.approx(mean_rate(arrivals_s))


def test_simulated_and_replayed_rows_give_the_same_numbers(made: Result) -> None:
    simulated, live = summary_of(made), live_summary(rows_of(made), 1.0)
    assert set(live) == set(simulated)
    for name in (
        "requests",
        "complete",
        "met",
        "outcomes",
        "output_tokens",
        "complete_output_tokens",
        "prompt_tokens",
        "retried",
    ):
        assert live[name] == simulated[name]
    for name in ("timed_out_before_decoding", "out_of_budget_before_decoding"):
        assert live[name] == simulated[name] > 0
    for name in ("attainment", "goodput_per_s", "output_tokens_per_s", "measured_rate_per_s"):
        assert live[name] == pytest.approx(simulated[name])
    for name in ("cost_usd", "cost_usd_per_request"):
        assert live[name] == pytest.approx(simulated[name])
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert live[name] == pytest.approx(simulated[name], rel=1e-5)
    for name, curve in simulated["curves"].items():
        assert live["curves"][name] == pytest.approx(curve, rel=1e-4)


def test_latencies_are_of_complete_answers_only(made: Result) -> None:
    columns = made.columns
    complete = np.isin(
        columns["outcome"], [OUTCOMES.index(name) for name in ("ok", "late", "budget_exhausted_mid_decode")]
    )
    told = summary_of(made)
    assert told["ttft_s"] == pytest.approx(asdict(Summary.of(columns["ttft_s"][complete].tolist())))
    ordered = sorted(columns["e2e_s"][complete].tolist())
    assert len(told["curves"]["e2e_s"]) == 201
    assert told["curves"]["e2e_s"][190] == pytest.approx(quantile(ordered, 0.95), rel=1e-4)


def test_gaps_are_weighted_by_their_number(made: Result) -> None:
    told = summary_of(made)["itl_s"]
    assert told["count"] == 100
    assert told["mean"] == pytest.approx((90 * 0.01 + 9 * 0.02 + 0.5) / 100, rel=0.01)
    assert told["p90"] == pytest.approx(0.01, rel=0.01)
    assert told["p95"] == pytest.approx(0.02, rel=0.01)
    assert told["max"] == pytest.approx(0.5, rel=0.01)


def test_a_client_knows_the_mean_gap_of_each_answer(made: Result) -> None:
    columns = made.columns
    complete = ~np.isnan(columns["quality"])
    gaps = (columns["output_tokens"] - 1)[complete]
    single = np.repeat(columns["tpot_s"][complete], np.maximum(gaps, 0)).astype(float)
    told = live_summary(rows_of(made), 1.0)["itl_s"]
    assert told["count"] == len(single)
    assert told["mean"] == pytest.approx(single.mean(), rel=1e-5)
    assert told["p99"] == pytest.approx(np.quantile(single, 0.99, method="inverted_cdf"))


def test_attainment_by_slo_adds_up(made: Result) -> None:
    told = summary_of(made)
    classes = told["by_slo"]
    assert [(one["slo_ttft_s"], one["slo_e2e_s"]) for one in classes] == [(1.0, None), (2.0, None)]
    assert sum(one["offered"] for one in classes) == told["offered_with_slo"]
    assert sum(one["met"] for one in classes) == told["met"]


def test_most_requests_at_once(made: Result) -> None:
    starts = made.columns["arrival_s"]
    ends = starts + made.columns["e2e_s"]
    expected = max(int(((starts <= at) & (ends > at)).sum()) for at in starts)
    assert summary_of(made)["peak_in_flight"] == expected


def test_predictions_against_what_happened(made: Result) -> None:
    told = summary_of(made)["prediction"]
    assert told["ttft_p50_median_relative_error"] == pytest.approx(0.1, rel=1e-3)
    assert 0.85 < told["ttft_p95_coverage"] < 0.95
    assert told["p_miss_mean"] == pytest.approx(0.1)
    made.columns["predicted_ttft_s_p95"][:] = np.nan
    assert summary_of(made)["prediction"] is None


def test_the_timeline_is_thinned(made: Result) -> None:
    told = summary_of(made)["timeline"]
    assert told["at_s"][:2] == [0.0, 3.0]
    assert len(told["at_s"]) == 167
    assert told["instances"]["h100-0"]["in_flight"][1] == 3
    assert set(told["instances"]["l4-0"]["kv_usage"]) == {None}


def test_a_run_without_answers_or_requests() -> None:
    told = summary_of(result(["rejected_budget"] * 5))
    assert (told["attainment"], told["ttft_s"]["p50"], told["quality_mean"]) == (0.0, None, None)
    assert told["out_of_budget_before_decoding"] == 5
    assert told["cost_usd_per_request"] is None
    nothing = summary_of(result([]))
    assert (nothing["requests"], nothing["attainment"], nothing["goodput_per_s"]) == (0, None, None)
