"""How scarce instances are that meet SLOs, and what chance a request must have."""

from __future__ import annotations

from typing import Any

import pytest

from policies.giving_up import FREE_SCARCITY, GivingUp, Work
from router.core.profile import EngineProfile
from router.core.types import Request
from tests.unit.policies.made_options import option

EPSILON = 0.1
PROFILE = EngineProfile("p", 0.0, 0.01, 1e-4, 1e-8, 0.0, 100_000)


def request(**fields: Any) -> Request:
    return Request("r", 0.0, "slo", ("m",), **{"prompt_tokens": 1000} | fields)


def work(times: float = 1.0) -> Work:
    return Work(PROFILE, False, 0.0, 0.0, 100.0 * times)


def decided(giving_up: GivingUp, misses: list[float], times: float = 1.0, **fields: Any) -> float:
    for miss in misses:
        giving_up.decided(request(**fields), work(times), miss)
    return giving_up.scarcity


def test_scarcity_rises_where_none_meets_an_slo_and_falls_where_one_does() -> None:
    one = GivingUp(EPSILON)
    assert decided(one, [0.11]) == pytest.approx(0.13)
    assert decided(one, [0.5]) == pytest.approx(0.169)
    assert decided(one, [0.1]) == pytest.approx(0.169 * 0.995)
    assert decided(one, [0.0] * 200) == 0.1
    assert decided(one, [1.0] * 20) == 0.6


def test_whose_miss_does_not_raise_scarcity() -> None:
    one = GivingUp(EPSILON)
    decided(one, [0.0] * 10)
    assert decided(one, [1.0], max_cost_usd=1.0) == 0.1  # it may be unable to pay
    assert decided(one, [1.0], times=2.0) == 0.1  # much work is given up, and that raises no price
    assert decided(one, [1.0], times=0.5) > 0.1


@pytest.mark.parametrize(
    ("scarcity", "times", "hard", "chance"),
    [
        (FREE_SCARCITY, 9.0, False, EPSILON),
        (0.5, 1.0, False, 0.2),
        (0.5, 1.0, True, 0.4),
        (0.5, 3.0, False, 0.6),
        (0.35, 1.0, False, EPSILON),
    ],
)
def test_the_chance_that_is_worth_the_work(scarcity: float, times: float, hard: bool, chance: float) -> None:
    one = GivingUp(EPSILON)
    assert one.least_chance(request(), work(9.0)) == EPSILON
    decided(one, [0.0])
    one.scarcity = scarcity
    found = one.least_chance(request(hard=hard), work(times))
    assert found == pytest.approx(chance, rel=0.05)  # a longer answer has a larger context
    assert one.least_chance(request(), None) == pytest.approx(max(scarcity - FREE_SCARCITY, EPSILON))


def test_the_work_of_a_request_is_what_is_not_cached() -> None:
    there = option("a", tokens=50.0, profile=PROFILE)
    one = GivingUp(EPSILON, lambda request, instance: {"a": 600.0, "b": 5000.0}[instance])
    assert one.work(request(), there) == (PROFILE, False, 1000, 0.0, 50.0)
    assert one.work(request(prefix=(1,)), there) == (PROFILE, False, 1000, 600.0, 50.0)
    all_cached = one.work(request(prefix=(1,)), option("b", tokens=50.0, profile=PROFILE))
    assert all_cached == (PROFILE, False, 1000, 999, 50.0)  # an engine computes one token at least
    assert one.work(request(), option("a")) is None
    there.prediction = None
    assert one.work(request(), there) is None
