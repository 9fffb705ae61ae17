"""SLO classes, budgets and arrival processes."""

import itertools
import random
from typing import Any

import pytest

from benchmarks.measures import coefficient_of_variation, mean_rate
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.mixes import RoutingMix
from benchmarks.workloads.sources.generators import Process, day_cycle

REQUESTS = [WorkloadRequest(id=f"r{index}", arrival_s=float(index), prompt_tokens=1) for index in range(2000)]


def test_mix_has_the_told_shares_and_multiples() -> None:
    mix = RoutingMix.of(
        slo="ttft_ms=1000,tpot_ms=50",
        slo_mix="tight=0.2,normal=0.5,own=0.2,none=0.1",
        slo_class=["own:e2e_ms=9000"],
        on_miss="reject",
    )
    got = list(mix.apply(REQUESTS, seed=3))
    kinds = [None if request.routing is None else str(request.routing["slo"]) for request in got]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    assert shares[str({"ttft_ms": 500.0, "tpot_ms": 25.0})] == pytest.approx(0.2, abs=0.03)
    assert shares[str({"ttft_ms": 1000.0, "tpot_ms": 50.0})] == pytest.approx(0.5, abs=0.03)
    assert shares[str({"e2e_ms": 9000.0})] == pytest.approx(0.2, abs=0.03)
    assert shares[None] == pytest.approx(0.1, abs=0.03)
    assert all(request.routing["on_miss"] == "reject" for request in got if request.routing)
    assert mix.as_dict()["slo_classes"]["own"] == {"e2e_ms": 9000.0}


def test_a_request_keeps_its_wish_whatever_else_is_there() -> None:
    mix = RoutingMix.of(slo_mix="tight=0.5,loose=0.5", budget_mix="0.001=0.5,none=0.5")
    whole = {request.id: request.routing for request in mix.apply(REQUESTS, 1)}
    part = {request.id: request.routing for request in mix.apply(REQUESTS[500:700], 1)}
    assert all(whole[identity] == routing for identity, routing in part.items())
    other_seed = {request.id: request.routing for request in mix.apply(REQUESTS, 2)}
    assert other_seed != whole


def test_budget_mix_policy_and_quality() -> None:
    mix = RoutingMix.of(budget_mix="0.002=1", policy="cost", min_quality=0.6)
    (got,) = mix.apply(REQUESTS[:1], 0)
    assert got.routing == {"policy": "cost", "max_cost_usd": 0.002, "min_quality": 0.6}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"slo": "ttft=3"}, "unknown target 'ttft'"),
        ({"slo": "ttft_ms=0"}, "must be above 0"),
        ({"slo": "ttft_ms=x"}, "is not a number"),
        ({"slo": "ttft_ms"}, "expected NAME=NUMBER"),
        ({"slo": "ttft_ms=1,ttft_ms=2"}, "given twice"),
        ({"slo_mix": "tight=0.5,none=0.4"}, "add up to 0.9"),
        ({"slo_mix": "brisk=1"}, "unknown class 'brisk'"),
        ({"slo_mix": "tight=1.5,none=-0.5"}, "below 0"),
        ({"slo_class": ["x"]}, "expected NAME=FACTOR"),
        ({"budget_mix": "cheap=1"}, "is not a number"),
        ({"budget_mix": "tight=1"}, "tight needs --budget-tariff"),
        ({"budget_mix": "tight=1", "budget_tariff": "1"}, "expected INPUT,OUTPUT"),
        ({"budget_mix": "tight=1", "budget_tariff": "1,x"}, "is not a number"),
        ({"quality_mix": "1.2=1"}, "above 1"),
        ({"quality_mix": "x=1"}, "not a number"),
        ({"quality_mix": "0.5=1", "min_quality": 0.5}, "cannot both"),
    ],
)
def test_bad_options_say_why(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(WorkloadError, match=reason):
        RoutingMix.of(**options)


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize(
    ("name", "cv", "expected"), [("poisson", 4.0, 1.0), ("gamma", 3.0, 3.0), ("gamma", 0.5, 0.5)]
)
def test_processes_have_their_rate_and_cv(name: str, cv: float, expected: float) -> None:
    times = list(itertools.islice(Process(name, 2.0, cv=cv).times(seed=5), 40_000))
    assert mean_rate(times) == pytest.approx(2.0, rel=0.05)
    assert coefficient_of_variation(gaps(times)) == pytest.approx(expected, rel=0.05)
    assert times == list(itertools.islice(Process(name, 2.0, cv=cv).times(seed=5), 40_000))


def test_day_cycle_is_low_at_its_ends_and_high_in_the_middle() -> None:
    process = day_cycle(random.Random(1), rate_per_s=10.0, period_s=1000.0, depth=0.8)
    times = list(itertools.takewhile(lambda at_s: at_s < 1000.0, process))
    low = sum(at_s < 100 or at_s >= 900 for at_s in times)
    high = sum(400 <= at_s < 600 for at_s in times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert high > 4 * low
