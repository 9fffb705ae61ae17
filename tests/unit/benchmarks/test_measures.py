"""Quantiles, attainment and goodput."""

from random import Random

import pytest

from benchmarks.measures import (
    Interval,
    Summary,
    attainment,
    coefficient_of_variation,
    mean_rate,
    offered_period_s,
    quantile,
)


def test_quantile_interpolates_between_order_statistics() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert quantile(values, 0.0) == 1.0
    assert quantile(values, 0.5) == 2.5
    assert quantile(values, 1.0) == 4.0
    assert quantile(values, 0.25) == pytest.approx(1.75)
    assert quantile([], 0.5) is None


def test_summary_leaves_unknown_values_out() -> None:
    summary = Summary.of([3.0, None, 1.0])
    assert (summary.count, summary.mean, summary.p50, summary.max) == (2, 2.0, 2.0, 3.0)
    empty = Summary.of([None])
    assert (empty.count, empty.mean, empty.p99) == (0, None, None)


def test_rejected_counts_as_missed_and_invalid_is_not_offered() -> None:
    rows = [
        ("ok", True),
        *((outcome, False) for outcome in ("late", "rejected_slo", "backend_error")),
        *((outcome, False) for outcome in ("rejected_invalid", "client_cancelled")),
        ("ok", None),
    ]
    got = attainment(rows, offered_period_s=10.0)
    assert got == {"offered_with_slo": 4, "met": 1, "attainment": 0.25, "goodput_per_s": 0.1}
    assert attainment([("ok", None)], 10.0)["attainment"] is None


def test_goodput_is_attainment_times_the_offered_rate() -> None:
    arrivals = [0.0, 1.0, 2.0, 3.0]
    period = offered_period_s(arrivals)
    got = attainment([("ok", index < 2) for index in range(4)], period)
    assert mean_rate(arrivals) == 1.0
    assert got["goodput_per_s"] == pytest.approx(0.5)
    assert offered_period_s([1.0]) is None


def test_coefficient_of_variation() -> None:
    assert coefficient_of_variation([2.0, 2.0, 2.0]) == 0.0
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(0.5)
    assert coefficient_of_variation([1.0]) is None
    assert coefficient_of_variation([0.0, 0.0]) is None


def test_draws_of_one_trace_do_not_narrow_an_interval() -> None:
    """Bootstrap draws spread as the trace would: an interval of them must not shrink with their number."""
    random = Random(5)
    few, many = ([random.gauss(10, 2) for _ in range(count)] for count in (5, 500))
    assert Interval.of(many).half_width < 0.2
    assert Interval.of(many, resampled=True).half_width == pytest.approx(1.96 * 2, rel=0.1)
    narrow, wide = Interval.of(few), Interval.of(few, resampled=True)
    assert wide.half_width == pytest.approx(narrow.half_width * 6**0.5)
    assert wide.mean == narrow.mean
