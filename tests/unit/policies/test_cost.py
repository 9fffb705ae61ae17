"""`cost`: single decisions, and whether its three means settle at their targets."""

from __future__ import annotations

import re
from collections import deque
from copy import deepcopy
from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.engine.profiles import profile
from policies.cost import LeastSpend
from policies.quality_price_estimator import Offer, QualityPriceEstimator
from router.core.interfaces import Option
from router.core.types import Candidate, Request, Slo, Targets
from tests.unit.policies import made_options

SLO = Slo(e2e_s=1.0)


def option(name: str, model: str | None = None, **given: Any) -> Option:
    return made_options.option(name, model or name, **{"quality": 0.5, "cost": 1.0, "e2e": 1.0} | given)


def request(number: int = 0, key: str | None = None, slo: Slo | None = None) -> Request:
    return Request(str(number), float(number), "cost", ("small", "large"), prompt_tokens=10, key=key, slo=slo)


def policy(**targets: float | None) -> LeastSpend:
    held = Targets(**targets)  # type: ignore[arg-type]
    return LeastSpend(lambda key: held)


def pick(policy_: LeastSpend, request_: Request, options: list[Option]) -> Option:
    """Choose and place, as the scheduler does."""
    choice = policy_.choose(request_, options, Random(0))
    policy_.placed(request_, options, choice)
    return options[choice.index]


def quality_of(option_: Option) -> float:
    assert option_.prediction is not None
    return option_.prediction.quality or 0.0


def two_models(small: float, large: float, unit: float = 1.0, ratio: float = 10.0) -> list[Option]:
    """Of these qualities, the large one `ratio` times as expensive."""
    return [option("small", quality=small, cost=unit), option("large", quality=large, cost=unit * ratio)]


def offers(*points: tuple[float, float]) -> list[Offer]:
    """Models of these qualities and costs, whose misses and load count nothing."""
    return [Offer(quality, cost_usd, quality) for quality, cost_usd in points]


def prompts(seed: int, count: int) -> list[tuple[float, float]]:
    """Qualities of a small and a large model; for many prompts the small one is nearly as good."""
    rng = Random(seed)
    found = []
    for _ in range(count):
        large = rng.uniform(0.5, 0.9)
        found.append((large - 0.5 * rng.random() ** 2, large))
    return found


# --- the price of quality ---------------------------------------------------------------------------------
def test_price_buys_the_target_quality_at_the_least_cost() -> None:
    """Two steps are offered, at 2 and at 20 USD a unit: half of the quality comes from the cheap one."""
    offer = QualityPriceEstimator()
    for _ in range(50):
        offer.add(offers((0.5, 1.0), (0.6, 1.2)), 1000)
        offer.add(offers((0.5, 1.0), (0.6, 3.0)), 1000)
    assert offer.price_usd(0.5) == 0.0
    assert offer.price_usd(0.52) == pytest.approx(2.0, rel=0.1)
    assert offer.price_usd(0.58) == pytest.approx(20.0, rel=0.1)
    # Out of reach: the price of the most expensive step.
    assert offer.price_usd(0.99) == pytest.approx(20.0, rel=0.1)
    assert offer.reachable == pytest.approx(0.6)


def test_price_follows_the_unit_of_the_tariff() -> None:
    cheap, expensive = QualityPriceEstimator(), QualityPriceEstimator()
    for small, large in prompts(3, 200):
        cheap.add(offers((small, 1e-9), (large, 1e-8)), 500)
        expensive.add(offers((small, 1e6), (large, 1e7)), 500)
    assert expensive.price_usd(0.65) / cheap.price_usd(0.65) == pytest.approx(1e15, rel=0.1)


def test_old_offers_are_forgotten_and_weights_stay_bounded() -> None:
    offer = QualityPriceEstimator()
    for _ in range(3000):
        offer.add(offers((0.2, 1.0), (0.9, 2.0)), 20)
    for _ in range(200):
        offer.add(offers((0.2, 1.0), (0.4, 2.0)), 20)
    assert offer.reachable == pytest.approx(0.4, abs=0.01)
    assert offer._next_weight <= 1e12 * 1.1


# --- single decisions -------------------------------------------------------------------------------------
def test_first_request_takes_the_cheapest_option_that_is_good_enough() -> None:
    options = [
        option("bad", quality=0.3, cost=1.0),
        option("good", quality=0.795, cost=2.0),
        option("best", quality=0.8, cost=9.0),
    ]
    assert pick(policy(), request(), options).candidate.model == "good"
    assert pick(policy(quality=0.2), request(), options).candidate.model == "bad"


def test_replicas_are_taken_by_expected_time_then_name() -> None:
    replicas = [option("b", "m", e2e=2.0), option("c", "m"), option("a", "m")]
    choice = policy().choose(request(), replicas, Random(0))
    assert choice.index == 2
    assert list(choice.alternatives) == [0, 1]


def test_a_likely_miss_costs_the_answer_again() -> None:
    options = [option("late", "m", cost=1.0, miss=0.5), option("sure", "m", cost=1.2, miss=0.0)]
    assert pick(policy(), request(slo=SLO), options).candidate.instance == "sure"


def test_unknown_prices_and_qualities_come_last() -> None:
    options = [
        option("a", cost=None),
        option("b", quality=None, cost=1.0),
        option("c", quality=0.6, cost=1.0),
    ]
    assert pick(policy(), request(), options).candidate.instance == "c"
    assert pick(policy(), request(), [option("a", cost=None)]).candidate.instance == "a"


def test_repeated_attempts_make_an_instance_more_expensive() -> None:
    spender = policy()
    for number in range(40):
        failing, sound = option("failing", "m", cost=1.0), option("sound", "m", cost=1.1)
        request_ = request(number)
        pick(spender, request_, [failing])
        pick(spender, request_, [sound])  # repeated there
        spender.ended(request_, sound.candidate, None, 0.0)
    options = [option("failing", "m", cost=1.0), option("sound", "m", cost=1.1)]
    assert pick(spender, request(99), options).candidate.instance == "sound"


def test_a_second_attempt_moves_no_price() -> None:
    spender = policy()
    options = [option("small", quality=0.5, slots=1, running=5), option("large", quality=0.9, cost=8.0)]
    pick(spender, request(slo=SLO), options)
    before = spender.prices(), deepcopy(spender._repeated)
    pick(spender, request(slo=SLO), options[1:])
    assert (spender.prices(), spender._repeated) == before


# --- means ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e5])
@pytest.mark.parametrize("target", [0.55, 0.6, 0.65])
def test_mean_quality_settles_at_the_target_for_little_more_than_the_least_cost(
    unit: float, target: float
) -> None:
    spender = policy(quality=target)
    offered = prompts(1, 1500)
    got, spent = [], 0.0
    for number, (small, large) in enumerate(offered):
        chosen = pick(spender, request(number), two_models(small, large, unit))
        assert chosen.prediction is not None
        got.append(quality_of(chosen))
        spent += chosen.prediction.cost_usd or 0.0
    assert fmean(got) == pytest.approx(target, abs=0.01)
    assert fmean(got[:100]) == pytest.approx(target, abs=0.04)
    # The least cost: the large model where it gains most, until the mean is reached.
    mean = fmean(small for small, _ in offered)
    least = float(len(offered))
    for gain in sorted((large - small for small, large in offered), reverse=True):
        if mean >= fmean(got):
            break
        mean += gain / len(offered)
        least += 9.0
    assert spent / unit <= 1.08 * least


def test_the_default_target_is_what_is_reachable_minus_half_the_slack() -> None:
    spender = policy(quality_slack=0.06)
    got, best = [], []
    for number, (small, large) in enumerate(prompts(2, 1500)):
        other = 1.2 - large  # better than the large model for hard prompts
        options = [*two_models(small, large), option("other", quality=other, cost=8.0)]
        got.append(quality_of(pick(spender, request(number), options)))
        best.append(max(large, other))
    assert fmean(best) - fmean(got) == pytest.approx(0.03, abs=0.005)


def test_scopes_have_prices_of_their_own_and_targets_can_change_at_any_time() -> None:
    targets = {"thrifty": Targets(quality=0.4), "picky": Targets(quality=0.68)}
    shared = LeastSpend(lambda key: targets[key or ""])
    got: dict[str, list[float]] = {"thrifty": [], "picky": []}

    def play(seed: int) -> None:
        for number, (small, large) in enumerate(prompts(seed, 600)):
            for key, found in got.items():
                request_ = request(number + 1000 * seed, key)
                chosen = pick(shared, request_, two_models(small, large))
                shared.ended(request_, chosen.candidate, None, 0.0)
                found.append(quality_of(chosen))

    play(1)
    assert fmean(got["picky"]) > fmean(got["thrifty"]) + 0.1
    targets["thrifty"] = Targets(quality=0.68)
    got["thrifty"].clear()
    play(2)
    assert fmean(got["thrifty"]) == pytest.approx(0.68, abs=0.015)


def test_scopes_without_requests_are_forgotten_first() -> None:
    shared = policy()
    for number in range(1100):
        pick(shared, request(number, f"key {number}"), [option("small"), option("large", quality=0.9)])
    assert len(shared.prices()) == 1024
    assert "key 1099" in shared.prices()


# --- a closed loop ----------------------------------------------------------------------------------------
def closed_loop(spender: LeastSpend, rates: list[int], steps: int) -> tuple[list[bool], list[int]]:
    """Two instances, the cheap one with few slots. Each is slower the fuller it is, and P(miss) is predicted from that
    with an error. `rates` are the requests that arrive in each step. Returns (met, in flight at the cheap instance) for
    each request."""
    rng = Random(4)
    running: dict[str, deque[int]] = {"cheap": deque(), "dear": deque()}
    slots = {"cheap": 10, "dear": 60}
    ends: list[tuple[int, Request, Candidate, bool]] = []
    met, loads = [], []
    number = 0
    for step in range(steps):
        for ends_at in running.values():
            while ends_at and ends_at[0] <= step:
                ends_at.popleft()
        for ended in [each for each in ends if each[0] <= step]:
            ends.remove(ended)
            spender.ended(ended[1], ended[2], ended[3], float(step))
            met.append(ended[3])
        for _ in range(rates[step * len(rates) // steps]):
            options = []
            for name, cost in (("cheap", 1.0), ("dear", 4.0)):
                fill = len(running[name]) / slots[name]
                miss = min(max((fill - 0.6) * 1.5 + rng.uniform(-0.05, 0.05), 0.01), 0.99)
                load = {"slots": slots[name], "running": len(running[name])}
                options.append(option(name, "m", cost=cost, miss=miss, e2e=0.5 + fill, **load))
            request_ = request(number, slo=SLO)
            number += 1
            chosen = pick(spender, request_, options)
            assert chosen.prediction is not None
            name = chosen.candidate.instance
            running[name].append(step + 5)
            kept = rng.random() >= (chosen.prediction.p_miss or 0.0)
            ends.append((step + 5, request_, chosen.candidate, kept))
            loads.append(len(running["cheap"]))
    return met, loads


def test_caution_follows_misses_beyond_those_allowed() -> None:
    spender, there = policy(attainment=0.9), option("a", miss=0.3)  # six of a hundred may miss
    expected = spender._scopes.get(None).caution

    def caution() -> float:
        return spender._scopes.get(None).caution

    for number, (slo, met, beyond) in enumerate(
        [(SLO, None, 0.0), (SLO, True, -0.06), (SLO, False, 0.94), (None, None, 0.0)]
    ):
        wanted = request(number, slo=slo)
        pick(spender, wanted, [there])
        assert caution() == pytest.approx(expected * (1.0 if slo is None else exp(0.2 * 0.24)))
        spender.ended(wanted, there.candidate, met, 1.0)
        expected *= exp(0.2 * beyond)
        assert caution() == pytest.approx(expected)
    assert spender.prices()[None]["attainment"] == pytest.approx(0.5, abs=0.01)


def test_attainment_holds_while_the_load_swings() -> None:
    spender = policy(attainment=0.95, window_requests=300)
    met, loads = closed_loop(spender, [1, 6, 1, 6, 1, 6], 1200)
    assert fmean(met) >= 0.94
    tail = met[len(met) // 2 :]
    assert fmean(tail) >= 0.94
    assert fmean(loads) > 3.0  # the cheap instance is used, not avoided


def test_attainment_settles_within_500_requests_after_a_change_of_load() -> None:
    """The load grows sixfold half-way. From 500 requests on, attainment holds, and neither the caution nor the share of the
    cheap instance swings."""
    spender = policy(attainment=0.95)
    steps = 1200
    quiet = steps // 2
    met, loads = closed_loop(spender, [1, 6], steps)
    assert fmean(met[quiet + 500 :]) >= 0.95
    tail = loads[quiet + 500 :]
    parts = [fmean(tail[at : at + 300]) for at in range(0, len(tail) - 300, 300)]
    assert max(parts) - min(parts) <= 0.15 * fmean(tail)


def test_quality_settles_within_500_requests_after_a_change_of_tariff() -> None:
    spender = policy(quality=0.65)
    got, offered = [], prompts(5, 2000)
    for number, (small, large) in enumerate(offered):
        unit, ratio = (1.0, 10.0) if number < 1000 else (1000.0, 3.0)
        got.append(quality_of(pick(spender, request(number), two_models(small, large, unit, ratio))))
    for at in (1500, 1625, 1750, 1875):
        ease = fmean(large for _, large in offered[at : at + 125]) - 0.7
        assert fmean(got[at : at + 125]) == pytest.approx(0.65 + ease, abs=0.01)


def test_quality_settles_within_500_requests_after_a_change_of_the_fleet() -> None:
    """The best model comes after 1000 requests, and goes after 2000."""
    spender = policy()
    got, best = [], []
    for number, (small, large) in enumerate(prompts(6, 3000)):
        options = two_models(small, large)
        if 1000 <= number < 2000:
            options.append(option("best", quality=min(large + 0.1, 1.0), cost=30.0))
        got.append(quality_of(pick(spender, request(number), options)))
        best.append(max(map(quality_of, options)))
    for at in (500, 750, 1500, 1750, 2500, 2750):
        short = fmean(best[at : at + 250]) - fmean(got[at : at + 250])
        assert short == pytest.approx(0.005, abs=0.005)


def test_prices_fall_again_under_light_load() -> None:
    spender = policy(attainment=0.95)
    closed_loop(spender, [8, 8, 1, 1], 600)
    options = [option("cheap", "m", cost=1.0, slots=10), option("dear", "m", cost=4.0, slots=60)]
    assert pick(spender, request(10**6, slo=SLO), options).candidate.instance == "cheap"


def test_prices_and_qualities_are_listed_by_scope() -> None:
    policy = LeastSpend(lambda key: Targets(quality=0.8))
    assert policy.prices() == {}
    options = [option("cheap", quality=0.6, cost=1.0), option("dear", quality=0.9, cost=4.0)]
    request_ = request(key="team", slo=SLO)
    chosen = pick(policy, request_, options)
    prices = policy.prices()["team"]
    assert prices["usual_answer_usd"] == pytest.approx(2.5)
    assert prices["quality_usd"] == pytest.approx(10.0, rel=0.1)  # 3 USD for 0.3
    assert (prices["miss_usd"] or 0.0) > 0.0
    assert (prices["wished_quality"], prices["reachable_quality"]) == (0.8, pytest.approx(0.9))
    assert (prices["reached_quality"], prices["attainment"]) == (chosen.prediction.quality, None)  # type: ignore[union-attr]
    policy.ended(request_, chosen.candidate, True, 0.0)
    assert policy.prices()["team"]["attainment"] == 1.0


# --- the order of the constraints -------------------------------------------------------------------------
ORDERED = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(1e-9, 1e3), st.floats(0.0, 1.0)), min_size=2, max_size=5
)


@example([(0.0, 1.0, 0.0)] * 2, 0.0, 30)
@given(ORDERED, st.floats(0.0, 1.0), st.integers(0, 30))
def test_no_price_of_quality_or_spend_outweighs_a_miss(
    offered: list[tuple[float, float, float]], target: float, misses: int
) -> None:
    """The chosen option's P(miss) is at most 1 / caution above the least, whatever quality and spend would be gained: 2 %
    where attainment is short."""
    spender = policy(quality=target)
    options = [
        option(str(at), quality=quality, cost=cost, miss=miss)
        for at, (quality, cost, miss) in enumerate(offered)
    ]
    for number in range(misses):
        request_ = request(number, slo=SLO)
        spender.ended(request_, pick(spender, request_, options).candidate, False, 0.0)
    caution = spender._scopes.get(None).caution
    chosen = pick(spender, request(misses, slo=SLO), options)
    assert chosen.prediction is not None
    least = min(miss for _, _, miss in offered)
    assert (chosen.prediction.p_miss or 0.0) <= least + 1.01 / caution
    if misses == 30:
        assert caution == 50.0


def test_the_quality_price_stays_bounded_while_capacity_leaves_none_to_buy() -> None:
    """The best model is full for a long time. That leaves no shortfall that later requests would have to make up for."""
    spender = policy(quality=0.9)
    small, large = option("small", quality=0.5, cost=1.0), option("large", quality=0.9, cost=10.0)
    for number in range(600):
        pick(spender, request(number), [small] if number % 10 else [small, large])
    prices = spender.prices()[None]
    assert prices["reachable_quality"] == pytest.approx(0.54, abs=0.02)
    assert prices["reached_quality"] == pytest.approx(prices["reachable_quality"], abs=0.01)
    assert spender._scopes.get(None)._shortfall == pytest.approx(0.0, abs=0.1)


def test_free_answers_are_chosen_by_misses_and_then_by_quality() -> None:
    late = option("late", quality=0.9, cost=0.0, miss=0.9)
    good, fair = option("good", quality=0.8, cost=0.0, miss=0.1), option("fair", cost=0.0, miss=0.1)
    assert pick(policy(), request(slo=SLO), [late, fair, good]).candidate.instance == "good"


def test_a_request_stays_away_where_it_would_break_the_promises_of_others() -> None:
    crowded, quiet = option("crowded", "m", e2e=1.0), option("quiet", "m", cost=1.1, e2e=2.0)
    for each in (crowded, quiet):
        each.instance.profiles["m"] = profile("llama-3.1-8b@l4")
        each.prediction = replace(each.prediction, tpot_s=0.04)  # type: ignore[type-var]
    assert pick(policy(), request(), [crowded, quiet]) is crowded
    crowded.instance.promised_tpot_s.extend([0.041] * 200)
    assert pick(policy(), request(), [crowded, quiet]) is quiet


def test_a_busy_instance_is_left_to_requests_that_gain_more_there() -> None:
    """The best model is worth the delay of others only to a prompt that the cheap one would answer badly."""
    spender = policy(quality=0.9)
    best, cheap = option("best", quality=0.9, cost=2.0, e2e=2.0), option("cheap", quality=0.6, e2e=2.0)
    bad = option("cheap", quality=0.3, e2e=2.0)
    best.instance.profiles["best"] = profile("llama-3.1-70b@4xh100-80g")
    for number in range(50):
        pick(spender, request(number), [best, (cheap, bad)[number % 2]])
    long = replace(request(99), prompt_tokens=2000)
    assert pick(spender, replace(long, id="idle"), [best, cheap]) is best
    best.instance.running = 9
    choice = spender.choose(replace(long, id="easy"), [best, cheap], Random(0))
    assert choice.index == 1
    reason = choice.reasons[0] or ""
    shown = [float(seconds) for seconds in re.findall(r"(\S+) s of delay to others", reason)]
    assert len(shown) == 2, reason
    assert shown[0] > shown[1] == 0.0, reason
    assert pick(spender, replace(long, id="hard"), [best, bad]) is best


def test_misses_leave_a_busy_instance_to_those_that_have_no_other_place() -> None:
    """They wait there, and only their misses tell of it: the request itself is in time on both instances."""
    spender = policy(quality=0.9)
    best, cheap = option("best", quality=0.9, cost=2.0, e2e=2.0), option("cheap", quality=0.5, e2e=2.0)
    best.instance.profiles["best"] = profile("llama-3.1-70b@4xh100-80g")
    best.instance.running = 3
    for number in range(50):
        pick(spender, request(number), [best, cheap])
    long = replace(request(99), prompt_tokens=500)
    assert pick(spender, replace(long, id="before"), [best, cheap]) is best
    for number in range(60):
        bound = request(1000 + number, slo=SLO)
        pick(spender, bound, [best])
        spender.ended(bound, best.candidate, False, 0.0)
    assert pick(spender, replace(long, id="after"), [best, cheap]) is cheap


def test_a_lost_request_goes_only_where_it_disturbs_nobody() -> None:
    busy, idle = option("busy", quality=0.9, miss=0.99), option("idle", quality=0.4, cost=3.0, miss=0.99)
    assert pick(policy(), request(slo=SLO), [busy, idle]) is busy
    busy.instance.awaiting_first_token = 1
    choice = policy().choose(request(slo=SLO), [busy, idle], Random(0))
    assert (choice.index, choice.defer) == (1, False)
    assert "delay others" in (choice.reasons[0] or "")
    assert policy().choose(request(slo=SLO), [busy], Random(0)).defer
    assert not policy().choose(request(), [busy], Random(0)).defer
    busy.prediction = replace(busy.prediction, p_miss=0.8)  # type: ignore[type-var]
    assert not policy().choose(request(slo=SLO), [busy], Random(0)).defer


def test_under_load_much_work_is_given_up_for_its_chance() -> None:
    spender, busy = policy(), option("busy", miss=0.0)
    busy.instance.profiles["busy"] = profile("llama-3.1-8b@l4")
    busy.instance.awaiting_first_token = 1
    usual, heavy = request(slo=SLO), replace(request(slo=SLO), prompt_tokens=100)
    for number in range(20):
        pick(spender, request(number, slo=SLO), [busy])
    assert not spender.choose(heavy, [busy], Random(0)).defer
    late = replace(busy, prediction=replace(busy.prediction, p_miss=0.5))  # type: ignore[type-var]
    for number in range(20, 40):
        pick(spender, request(number, slo=SLO), [late])
    assert spender.choose(heavy, [busy], Random(0)).defer
    assert not spender.choose(usual, [busy], Random(0)).defer


def test_refusals_raise_the_price_of_a_hard_slo() -> None:
    spender, busy = policy(), option("busy", miss=0.0)
    busy.instance.profiles["busy"] = profile("llama-3.1-8b@l4")
    busy.instance.awaiting_first_token = 1
    hard, heavy = (replace(request(slo=SLO), hard=True, prompt_tokens=tokens) for tokens in (10, 100))
    for number in range(20):
        pick(spender, request(number, slo=SLO), [busy])
    assert not spender.choose(heavy, [busy], Random(0)).defer
    late = replace(busy, prediction=replace(busy.prediction, p_miss=0.5))  # type: ignore[type-var]
    for _ in range(20):
        spender.refused(hard, [late])
    assert spender.choose(heavy, [busy], Random(0)).defer


def test_extreme_times_and_prices_leave_an_answer() -> None:
    """Times near 0 in the past make any delay infinitely many mean answers; prices of a unit of quality may leave the
    range of a float."""
    spender = policy()
    options = [
        option("small", quality=0.5, cost=0.0, e2e=5e-324),
        option("large", quality=0.9, cost=1e-320, e2e=5e-324),
    ]
    for number in range(3):
        request_ = request(number, slo=SLO)
        spender.ended(request_, pick(spender, request_, options).candidate, False, 0.0)
    options.append(option("busy", running=8))
    options[-1].instance.profiles["busy"] = profile("llama-3.1-8b@l4")
    pick(spender, request(3, slo=SLO), options)
    prices = QualityPriceEstimator()
    prices.add(offers((0.5, 0.0), (0.9, 5e-324), (1.0, 1e308)), 100.0)
    assert 0.0 <= prices.price_usd(0.95) < float("inf")
