"""What a report computes from runs: intervals, cells, differences, capacity, regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.compare.capacity import NEAR_FACTOR, Capacity, capacities, capacity_of, rates_to_add
from benchmarks.compare.capacity import leaders as capacity_leaders
from benchmarks.compare.cells import cells, leaders, paired_differences
from benchmarks.compare.regret import oracle_cells, regrets
from benchmarks.measures import Interval

from .made import oracles, runs


def test_an_interval_needs_two_values() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    told = Interval.of([*values, None])
    error = (sum((value - 5.0) ** 2 for value in values) / 3 / 4) ** 0.5
    assert (told.count, told.mean) == (4, 5.0)
    assert told.half_width == pytest.approx(3.18244630528371 * error)  # Student's t, 3 degrees, 97.5 %
    assert Interval.of([2.0]) == Interval(1, 2.0, None)
    assert Interval.of([None]) == Interval(0, None, None)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(8, 1.0), (10, 0.97), (12, 0.93)], Capacity("within", 10, 12, 11.0)),
        ([(8, 0.97), (10, 0.93)], Capacity("within", 8, 10, 9.0)),
        ([(1, 1.0), (2, 0.97), (4, 0.93)], Capacity("between", 2, 4)),  # too far apart for a line
        ([(1, 1.0), (2, 0.95)], Capacity("at_least", 2, None)),
        ([(1, 0.94), (2, 0.5)], Capacity("below", None, 1)),
        # The last rate that keeps it counts, and the lower ones that do not are told.
        ([(4, 0.9), (10, 0.96), (12, 0.94)], Capacity("within", 10, 12, 11.0, (4,))),
        ([(1, 0.9), (2, 0.96)], Capacity("at_least", 2, None, missed_per_s=(1,))),
        ([], None),
    ],
)
def test_capacity_between_rates(points: list[tuple[float, float]], expected: Capacity | None) -> None:
    told = capacity_of(points)
    if expected is not None and expected.rate_per_s is not None:
        assert told.rate_per_s == pytest.approx(expected.rate_per_s)
        told = replace(told, rate_per_s=expected.rate_per_s)
    assert told == expected


NEAR = (10.0, 12.0, 14.0, 16.0, 18.0)


def attained(rates_per_s: Sequence[float], **shares: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Runs of policies that attained so: by seed, then by rate."""
    return [
        {"policy": policy, "seed": seed, "rate_per_s": rate, "attainment": share}
        for policy, by_seed in shares.items()
        for seed, own in enumerate(by_seed)
        for rate, share in zip(rates_per_s, own, strict=False)
    ]


def by_policy(**shares: Sequence[Sequence[float]]) -> dict[str, dict[str, Any]]:
    return {one["policy"]: one for one in capacities(attained(NEAR, **shares), "round_robin")}


def test_capacity_over_seeds() -> None:
    told = by_policy(round_robin=[(1.0, 0.9), (1.0, 0.8)], slo=[(1.0, 1.0, 0.9)] * 2)
    assert told["round_robin"]["rate_per_s"]["mean"] == pytest.approx((11 + 10.5) / 2)
    assert told["round_robin"]["bound"] == "within"
    assert told["slo"]["ratio"]["mean"] == pytest.approx((13 / 11 + 13 / 10.5) / 2)


def test_a_bound_is_told_of_all_seeds_or_of_none() -> None:
    told = by_policy(
        round_robin=[(1.0, 0.9), (1.0, 0.8)],
        high=[(1.0, 0.9), (1.0, 1.0)],
        highest=[(1.0, 1.0), (1.0, 0.96)],
        low=[(0.1, 0.1), (1.0, 0.9)],
        odd=[(1.0, 1.0), (0.1, 0.1)],
    )
    ends = {name: (one["bound"], one["low_per_s"], one["high_per_s"]) for name, one in told.items()}
    assert ends["high"] == ("mixed", 10.0, None)
    assert ends["highest"] == ("at_least", 12.0, None)
    assert ends["low"] == ("mixed", None, 12.0)
    assert ends["odd"] == ("mixed", None, None)
    # A mean over some seeds' estimates only would be of those alone.
    assert {told[name]["rate_per_s"]["mean"] for name in ("high", "highest", "low", "odd")} == {None}
    assert told["high"]["ratio"]["mean"] is None


def test_rates_far_apart_give_no_number() -> None:
    told = capacities(attained((16.0, 32.0), slo=[(1.0, 0.5)] * 2), "slo")
    assert (told[0]["bound"], told[0]["low_per_s"], told[0]["high_per_s"]) == ("between", 16.0, 32.0)
    assert told[0]["rate_per_s"]["mean"] is None
    added = rates_to_add({"capacity": told})
    assert all(high / low <= NEAR_FACTOR for low, high in pairwise([16.0, *added, 32.0]))
    assert len(added) == 3


def test_capacities_are_told_apart_pair_by_pair() -> None:
    # Seeds differ by far more than the policies do, but in each of them slo bears more than latency.
    kept = [[1.0] * (seed + 1) for seed in range(4)]
    made = attained(
        NEAR,
        slo=[(*each, 0.90) for each in kept],
        latency=[(*each, 0.85 - 0.01 * seed) for seed, each in enumerate(kept)],
        cost=[(*each, 0.92 if seed % 2 else 0.85) for seed, each in enumerate(kept)],
    )
    assert capacity_leaders(capacities(made, "slo")) == ["slo", "cost"]


def test_a_policy_that_keeps_the_target_in_no_seed_need_not_be_clearly_behind() -> None:
    made = attained((8.0, 16.0), cost=[(1.0, 0.5), (0.9, 0.5)], slo=[(0.9, 0.5)] * 2)
    assert capacity_leaders(capacities(made, "slo")) == ["cost", "slo"]
    assert capacity_leaders(capacities([run for run in made if run["policy"] == "slo"], "slo")) == []


def test_capacities_between_rates_are_told_apart_where_no_seed_overlaps() -> None:
    made = attained(
        (8.0, 16.0, 32.0),
        slo=[(1.0, 1.0, 0.5), (1.0, 1.0, 1.0)],
        cost=[(1.0, 1.0, 0.4), (1.0, 0.9, 0.4)],
        latency=[(1.0, 0.9, 0.5)] * 2,
        random=[(0.5, 0.5, 0.5)] * 2,
    )
    assert capacity_leaders(capacities(made, "slo")) == ["slo", "cost"]


def test_the_best_are_told_by_paired_differences() -> None:
    made = attained(
        (10.0,),
        slo=[(0.90,), (0.70,), (0.50,)],
        latency=[(0.88,), (0.681,), (0.48,)],  # behind in each draw by nearly the same
        cost=[(0.80,), (0.74,), (0.52,)],  # now ahead, now behind
    )
    assert leaders(made, 10.0, "attainment") == ["slo", "cost"]
    assert leaders(made, 10.0, "attainment", least=True)[0] == "latency"
    assert leaders(made, 20.0, "attainment") == []
    # One draw has no interval: those that are equal.
    assert leaders([one for one in made if one["seed"] == 0], 10.0, "attainment") == ["slo"]


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
    assert slo["seeds"] == [0, 1]
    assert slo["upper_bound"]["gap_closed"]["mean"] == pytest.approx(2 / 5)
    assert slo["upper_bound"]["regret_per_s"]["mean"] == pytest.approx((3.0 + 0.04) / 2)
    assert told["round_robin"]["clairvoyant"]["gap_closed"]["mean"] == 0


def test_oracles_that_know_only_a_part() -> None:
    told = oracle_cells(oracles())
    assert [one["rate_per_s"] for one in told] == [5.0, 10.0, 20.0]
    assert told[0]["clairvoyant_goodput_per_s"]["count"] == 2
    assert told[0]["seeds"] == [0, 1]
    assert told[0]["attainment_upper_bound"]["mean"] == 1.0
    assert [point["quality"] for point in told[0]["quality_cost"]] == [0.6, 0.8]
    bare = oracle_cells([{"rate_per_s": 1.0, "seed": 0}])[0]
    assert bare["goodput_upper_bound_per_s"]["mean"] is None
    assert bare["quality_cost"] == []
    assert regrets(goodputs("slo", 1.0), [{"rate_per_s": 10.0, "seed": 0}], "slo")[0]["clairvoyant"] is None
