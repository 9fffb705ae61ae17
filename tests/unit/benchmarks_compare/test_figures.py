"""What a report computes from runs: intervals, cells, differences, capacity, regret."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.special import stdtrit

from benchmarks.compare.capacity import Capacity, capacities, capacity_of
from benchmarks.compare.cells import cells, paired_differences
from benchmarks.compare.regret import oracle_cells, regrets
from benchmarks.measures import Interval, student_t_975

from .made import oracles, runs


@pytest.mark.parametrize("degrees", [1, 2, 9, 30, 31, 60, 1000])
def test_students_t(degrees: int) -> None:
    assert student_t_975(degrees) == pytest.approx(stdtrit(degrees, 0.975), rel=1e-6)


def test_an_interval_needs_two_values() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    told = Interval.of([*values, None])
    error = (sum((value - 5.0) ** 2 for value in values) / 3 / 4) ** 0.5
    assert (told.count, told.mean) == (4, 5.0)
    assert told.half_width == pytest.approx(stdtrit(3, 0.975) * error)
    assert Interval.of([2.0]) == Interval(1, 2.0, None)
    assert Interval.of([None]) == Interval(0, None, None)
    with pytest.raises(ValueError, match="degree of freedom"):
        student_t_975(0)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 1.0), (2, 0.97), (4, 0.93)], Capacity(3.0, "within")),
        ([(1, 1.0), (2, 0.95)], Capacity(2, "at_least")),
        ([(1, 0.94), (2, 0.5)], Capacity(1, "below")),
        ([(1, 0.9), (2, 0.96), (3, 0.94)], Capacity(2.5, "within")),  # the last rate that keeps it counts
        ([], None),
    ],
)
def test_capacity_between_rates(points: list[tuple[float, float]], expected: Capacity | None) -> None:
    told = capacity_of(points)
    assert (told is None) == (expected is None)
    if told is not None and expected is not None:
        assert told.bound == expected.bound
        assert told.rate_per_s == pytest.approx(expected.rate_per_s)


def attained(policy: str, seed: int, *shares: float) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "seed": seed, "rate_per_s": float(rate), "attainment": share}
        for rate, share in enumerate(shares, start=1)
    ]


def test_capacity_over_seeds() -> None:
    told = {
        one["policy"]: one
        for one in capacities(
            [
                *attained("round_robin", 0, 1.0, 0.9),
                *attained("round_robin", 1, 1.0, 0.8),
                *attained("slo", 0, 1.0, 1.0, 0.9),
                *attained("slo", 1, 1.0, 1.0, 0.9),
                *attained("high", 0, 1.0, 0.9),
                *attained("high", 1, 1.0, 1.0),
                *attained("odd", 0, 1.0, 1.0),
                *attained("odd", 1, 0.1, 0.1),
            ],
            "round_robin",
        )
    }
    assert told["round_robin"]["rate_per_s"]["mean"] == pytest.approx((1.5 + 1.25) / 2)
    assert told["round_robin"]["bound"] == "within"
    assert told["slo"]["ratio"]["mean"] == pytest.approx((2.5 / 1.5 + 2.5 / 1.25) / 2)
    assert (told["high"]["bound"], told["high"]["rate_per_s"]["mean"]) == ("at_least", pytest.approx(1.75))
    assert (told["odd"]["bound"], told["odd"]["rate_per_s"]["mean"]) == ("mixed", None)


def test_cells_are_means_over_seeds() -> None:
    made = runs()
    told = {(one["policy"], one["rate_per_s"]): one for one in cells(made)}
    assert len(told) == 9
    own = [one["attainment"] for one in made if one["policy"] == "slo" and one["rate_per_s"] == 10]
    figure = told["slo", 10.0]["measures"]["attainment"]
    assert figure["mean"] == pytest.approx(sum(own) / 3)
    assert figure["half_width"] == pytest.approx(Interval.of(own).half_width)
    assert sum(told["slo", 10.0]["outcomes"].values()) == pytest.approx(1)
    assert len(told["slo", 10.0]["curves"]["ttft_s"]) == 201


def test_one_seed_has_no_interval() -> None:
    figure = cells(runs(seeds=[None]))[0]["measures"]["attainment"]
    assert (figure["count"], figure["half_width"]) == (1, None)


def test_differences_are_taken_seed_by_seed() -> None:
    made = runs()
    made = [one for one in made if (one["policy"], one["seed"]) != ("slo", 2)]  # only two pairs are left
    told = paired_differences(made, "round_robin")
    assert {one["policy"] for one in told} == {"slo", "random"}
    entry = next(one for one in told if one["policy"] == "slo" and one["rate_per_s"] == 20)
    by_key = {(one["policy"], one["seed"]): one["attainment"] for one in made if one["rate_per_s"] == 20}
    expected = Interval.of(by_key["slo", seed] - by_key["round_robin", seed] for seed in (0, 1))
    assert entry["differences"]["attainment"]["mean"] == pytest.approx(expected.mean)
    assert entry["differences"]["attainment"]["half_width"] == pytest.approx(expected.half_width)


def goodputs(policy: str, *goodput: float) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "rate_per_s": 10.0, "seed": seed, "goodput_per_s": value}
        for seed, value in enumerate(goodput)
    ]


def test_regret_and_the_gap_closed_are_a_bracket() -> None:
    asked: list[dict[str, Any]] = [
        {
            "rate_per_s": 10.0,
            "seed": 0,
            "goodput_upper_bound_per_s": 10.0,
            "clairvoyant": {"goodput_per_s": 9.0},
        },
        {"rate_per_s": 10.0, "seed": 1, "goodput_upper_bound_per_s": 10.0},
    ]
    told = {
        one["policy"]: one
        for one in regrets(
            [*goodputs("round_robin", 5.0, 9.95), *goodputs("slo", 7.0, 9.96)], asked, "round_robin"
        )
    }
    slo = told["slo"]
    assert slo["clairvoyant"]["regret_per_s"]["mean"] == pytest.approx(2.0)
    assert slo["clairvoyant"]["gap_closed"]["mean"] == pytest.approx(2 / 4)
    # The second draw leaves no gap to speak of: it counts in the regret only.
    assert slo["upper_bound"]["gap_closed"]["count"] == 1
    assert slo["upper_bound"]["gap_closed"]["mean"] == pytest.approx(2 / 5)
    assert slo["upper_bound"]["regret_per_s"]["mean"] == pytest.approx((3.0 + 0.04) / 2)
    assert told["round_robin"]["clairvoyant"]["gap_closed"]["mean"] == 0


def test_oracles_that_know_only_a_part() -> None:
    told = oracle_cells(oracles())
    assert [one["rate_per_s"] for one in told] == [5.0, 10.0, 20.0]
    assert told[0]["clairvoyant_goodput_per_s"]["count"] == 2
    assert told[0]["attainment_upper_bound"]["mean"] == 1.0
    assert [point["quality"] for point in told[0]["quality_cost"]] == [0.6, 0.8]
    bare = oracle_cells([{"rate_per_s": 1.0, "seed": 0}])[0]
    assert bare["goodput_upper_bound_per_s"]["mean"] is None
    assert bare["quality_cost"] == []
    assert regrets(goodputs("slo", 1.0), [{"rate_per_s": 10.0, "seed": 0}], "slo")[0]["clairvoyant"] is None
