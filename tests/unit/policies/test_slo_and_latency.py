"""`slo` and `latency`: what a request costs the others at an instance, accepted risk, distrusted predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policies.cost import LeastSpend
from policies.expected import ExpectedTime, added_s
from policies.giving_up import promises_broken
from policies.latency import BUSIER, LeastLatency, least_busy
from policies.slo import BestFit
from router.core.interfaces import Option, Options, Policy
from router.core.profile import EngineProfile
from router.core.types import LoadReport, Request, Slo, Targets
from tests.unit.policies import made_options

SLO = Slo(1.0, 0.1)
PROFILE = EngineProfile("p", 0.0, 0.01, 1e-4, 1e-8, 0.0, 100_000)
SLOWER = EngineProfile("q", 0.0, 0.04, 4e-4, 4e-8, 0.0, 100_000)


def option(name: str, **given: Any) -> Option:
    usual = {"miss": 0.0, "e2e": 1.0, "tpot": 0.02, "ttft": 0.1, "tokens": 100.0}
    return made_options.option(name, **usual | given)


def request(number: int = 0, slo: Slo | None = SLO) -> Request:
    return Request(id=f"r{number}", arrived_at=0.0, policy="slo", models=("m",), prompt_tokens=1000, slo=slo)


def chosen(policy: BestFit | LeastLatency, options: list[Option], slo: Slo | None = SLO) -> str:
    choice = policy.choose(request(slo=slo), options, Random(0))
    return options[choice.index].candidate.instance


def place(policy: BestFit | LeastLatency, to: Option, times: int = 1, **fields: Any) -> None:
    for number in range(times):
        placed = replace(request(number), **fields)
        policy.placed(placed, [to], policy.choose(placed, [to], Random(0)))


# --- promised TPOT -----------------------------------------------------------------------------------
def test_a_promise_breaks_if_the_predicted_tpot_is_within_a_margin_of_it() -> None:
    there = option("a", tpot=0.04, promised=(0.03, 0.045, 0.06, 0.1))
    assert promises_broken(there) == 2  # 0.04 x 1.2 = 0.048
    assert promises_broken(option("a", tpot=0.04)) == 0
    there.prediction = None
    assert promises_broken(there) == 0


def test_slo_keeps_promised_tpots_before_it_saves_money() -> None:
    cheap = option("cheap", per_hour=1.0, tpot=0.05, promised=(0.04, 0.05))
    dear = option("dear", per_hour=4.0, tpot=0.02, promised=(0.04,))
    policy = BestFit(0.1, ExpectedTime())
    choice = policy.choose(request(), [cheap, dear], Random(0))
    assert choice.index == 1
    assert choice.reasons == ["would break the promised TPOT of running requests (2)", None]
    cheap.instance.promised_tpot_s = [0.25]
    assert chosen(policy, [cheap, dear]) == "cheap"


def test_without_an_option_in_time_slo_takes_the_least_time_among_nearly_equal_chances() -> None:
    options = [
        option("slow", miss=0.31, e2e=3.0),
        option("fast", miss=0.38, e2e=1.0),
        option("no", miss=0.5, e2e=0.5),
    ]
    assert chosen(BestFit(0.1, ExpectedTime()), options) == "fast"


@pytest.mark.parametrize(("weight", "taken"), [(0.0, "short"), (0.8, "early")])
def test_the_weight_of_ttft_counts_in_the_time_of_slo(weight: float, taken: str) -> None:
    options = [option("short", e2e=1.0), option("early", e2e=1.2)]
    for each, ttft_s in zip(options, (0.5, 0.1), strict=True):
        assert each.prediction is not None
        each.prediction = replace(each.prediction, ttft_s_p50=ttft_s)
    assert chosen(BestFit(0.1, ExpectedTime(weight)), options) == taken


def test_a_lost_request_goes_where_it_disturbs_nobody() -> None:
    hurts = option("hurts", miss=0.95, tpot=0.04, promised=(0.04,))
    harmless = option("harmless", miss=0.99, tpot=0.04, promised=(0.25,))
    choice = BestFit(0.1, ExpectedTime()).choose(request(), [hurts, harmless], Random(0))
    assert (choice.index, choice.defer) == (1, False)


@pytest.mark.parametrize("busy", [{"promised": (0.04,)}, {"waiting": 1}, {"kv_usage": 0.9}])
def test_a_lost_request_is_deferred_while_no_instance_has_room(busy: dict[str, object]) -> None:
    only = option("a", miss=0.95, tpot=0.04, promised=busy.get("promised", ()))  # type: ignore[arg-type]
    only.instance.awaiting_first_token = busy.get("waiting", 0)  # type: ignore[assignment]
    only.instance.report = LoadReport(kv_usage=busy.get("kv_usage"))  # type: ignore[arg-type]
    assert BestFit(0.1, ExpectedTime()).choose(request(), [only], Random(0)).defer


def test_a_small_chance_is_worth_an_attempt_only_where_fast_instances_are_not_scarce() -> None:
    policy = BestFit(0.1, ExpectedTime())
    options = [option("a", miss=0.75, promised=(0.02,)), option("b", miss=0.8, promised=(0.02,))]
    fine, late = option("fine"), option("late", miss=0.8)
    place(policy, fine, 600)
    choice = policy.choose(request(), options, Random(0))
    assert (choice.index, choice.defer) == (0, False)
    place(policy, late, 12)
    assert policy.choose(request(), options, Random(0)).defer
    options[0].prediction = option("a", miss=0.5).prediction
    assert not policy.choose(request(), options, Random(0)).defer


def test_under_load_much_work_is_given_up_for_its_chance() -> None:
    """A prompt that takes the time of five others must not disturb anybody, though it could be in time."""
    policy = BestFit(0.1, ExpectedTime())
    usual = [option("a", profile=PROFILE, promised=(0.02,)), option("b", profile=PROFILE, e2e=2.0)]
    heavy = replace(request(), prompt_tokens=5000)
    late = option("late", miss=0.8, profile=PROFILE)
    place(policy, usual[1], 600)
    assert policy.choose(heavy, usual[:1], Random(0)).defer is False
    place(policy, late, 12)
    choice = policy.choose(heavy, usual[:1], Random(0))
    assert (choice.index, choice.defer) == (0, True)
    choice = policy.choose(heavy, usual, Random(0))  # where it disturbs nobody it is sent
    assert (choice.index, choice.defer) == (1, False)
    assert choice.reasons[0] == "the SLO is given up, and the request would delay others there"
    assert policy.choose(request(), usual[:1], Random(0)).defer is False
    policy._giving_up._cached_tokens = lambda request, instance: 4500.0  # need no work
    assert policy.choose(replace(heavy, prefix=(1,)), usual[:1], Random(0)).defer is False
    assert policy.choose(heavy, usual[:1], Random(0)).defer
    usual[0].instance.profiles = {}  # whose work is not known counts as usual
    assert policy.choose(heavy, usual[:1], Random(0)).defer is False


def test_refusals_raise_the_price_and_that_of_a_hard_slo_is_twice_as_high() -> None:
    policy = BestFit(0.1, ExpectedTime())
    busy, late = option("a", profile=PROFILE, promised=(0.02,)), option("late", miss=0.8, profile=PROFILE)
    more = replace(request(), prompt_tokens=2000)  # some two times the usual work
    place(policy, option("b", profile=PROFILE), 600)
    assert policy.choose(replace(more, hard=True), [busy], Random(0)).defer is False
    for number in range(12):
        policy.refused(replace(request(number), hard=True), [late])
    assert policy.choose(replace(more, hard=True), [busy], Random(0)).defer
    assert policy.choose(more, [busy], Random(0)).defer is False


# --- accepted risk -----------------------------------------------------------------------------
def test_any_risk_within_epsilon_is_accepted_also_in_light_load() -> None:
    policy = BestFit(0.1, ExpectedTime())
    slow = option("slow", miss=0.05, per_hour=1.0)
    fast = option("fast", miss=0.001, per_hour=4.0)
    place(policy, fast, 600)
    assert chosen(policy, [slow, fast]) == "slow"


def test_slo_packs_only_as_far_as_fast_instances_are_scarce() -> None:
    policy = BestFit(0.1, ExpectedTime())
    options = [option("slow", e2e=9.0, per_hour=1.0), option("near", e2e=1.2, per_hour=2.0)]
    options.append(option("fast", e2e=1.0, per_hour=4.0))
    seen = [chosen(policy, options)]
    for _ in range(600):
        place(policy, options[2])
        if seen[-1] != chosen(policy, options):
            seen.append(chosen(policy, options))
    assert seen == ["slow", "near", "fast"]
    assert policy.choose(request(), options, Random(0)).reasons[0] == (
        "more time in all (TTFT, E2E, the delay to other requests): 9 s, against 1 s"
    )
    place(policy, option("none", miss=0.4), 12)
    assert chosen(policy, options) == "near"  # packing may cost half of the least time, not nine times it
    assert chosen(policy, [options[0], option("near", e2e=9.1, per_hour=2.0)]) == "slow"


@pytest.mark.parametrize("policy", [BestFit(0.1, ExpectedTime()), LeastSpend(lambda key: Targets())])
def test_requests_without_an_slo_leave_fast_instances_to_others_only_while_these_are_scarce(
    policy: Any,
) -> None:
    options = [option("slow", e2e=9.0, profile=SLOWER), option("fast", e2e=1.0, profile=PROFILE)]
    place(policy, options[1], 600)
    assert chosen(policy, options, None) == "fast"
    for number in range(12):
        policy.refused(request(number), [option("late", miss=0.8, profile=PROFILE)])
    choice = policy.choose(request(slo=None), options, Random(0))
    assert (choice.index, choice.reasons[1]) == (0, "kept free for requests with an SLO")


def test_of_requests_without_an_slo_a_broken_promise_costs_others_more_than_a_fast_instance() -> None:
    policy = BestFit(0.1, ExpectedTime())
    place(policy, option("late", miss=0.8), 12)
    slow = option("slow", e2e=9.0, tpot=0.05, profile=SLOWER, promised=(0.05,))
    assert chosen(policy, [slow, option("fast", e2e=1.0, profile=PROFILE)], None) == "fast"


@pytest.mark.parametrize("policy", [BestFit(0.1, ExpectedTime()), LeastSpend(lambda key: Targets())])
def test_fast_instances_are_scarce_too_when_they_are_full(policy: Any) -> None:
    """The same request is more work on the slow instances that are left, but not more than others are there."""
    place(policy, option("fast", profile=PROFILE), 600)
    before = policy._giving_up.scarcity
    for number in range(12):
        policy.refused(replace(request(number), hard=True), [option("slow", miss=0.8, profile=SLOWER)])
    assert policy._giving_up.scarcity > 4 * before


def test_a_request_with_a_money_cap_says_nothing_of_fast_instances() -> None:
    policy = BestFit(0.1, ExpectedTime())
    options = [option("slow", e2e=9.0, per_hour=1.0), option("fast", e2e=1.0, per_hour=4.0)]
    place(policy, options[1], 600)
    place(policy, option("none", miss=0.4), 12, max_cost_usd=1e-4)
    assert chosen(policy, options) == "fast"


def test_slo_keeps_promised_tpots_before_it_is_fast() -> None:
    policy = BestFit(0.1, ExpectedTime())
    fast = option("fast", e2e=1.0, tpot=0.05, promised=(0.05,))
    place(policy, fast, 600)
    assert chosen(policy, [fast, option("slow", e2e=5.0)]) == "slow"


# --- delay to others ------------------------------------------------------------------------------
def test_latency_counts_the_delay_that_a_request_adds_to_others() -> None:
    crowded = option("crowded", e2e=1.0, running=40, profile=PROFILE)
    quiet = option("quiet", e2e=1.2, running=1, profile=PROFILE)
    assert added_s(request(), [crowded])[0] == pytest.approx(40 * added_s(request(), [quiet])[0])
    # 1,000 prompt tokens at 1e-4 s each, and half of 100 steps that each read 1,050 more tokens
    assert added_s(request(), [quiet])[0] == pytest.approx(PROFILE.prefill_s(1000) + 50 * 1050e-8)
    assert chosen(LeastLatency(0.1, ExpectedTime()), [crowded, quiet]) == "quiet"
    crowded.instance.profiles.clear()
    assert added_s(request(), [crowded])[0] == 0.0


# --- distrusted predictions ----------------------------------------------------------------------------
def test_slo_stops_packing_and_then_uses_the_load_alone() -> None:
    policy = BestFit(0.1, ExpectedTime())
    slow = option("slow", per_hour=1.0, e2e=9.0, running=0)
    fast = option("fast", per_hour=4.0, e2e=1.0, running=5)
    options = [slow, fast]
    assert chosen(policy, options) == "slow"
    for level, expected in ((1, "fast"), (2, "slow")):
        for _ in range(20):
            place(policy, fast)
            policy.ended(request(), fast.candidate, False, 0.0)
        assert policy._guard.level == level
        assert chosen(policy, options) == expected
    assert BUSIER in policy.choose(request(), options, Random(0)).reasons


def test_latency_uses_the_load_only_for_requests_with_an_slo() -> None:
    policy = LeastLatency(0.1, ExpectedTime())
    busy, idle = option("busy", e2e=1.0, running=9), option("idle", e2e=5.0)
    for _ in range(20):
        place(policy, busy)
        policy.ended(request(), busy.candidate, False, 0.0)
    assert chosen(policy, [busy, idle]) == "idle"
    assert chosen(policy, [busy, idle], slo=None) == "busy"
    late = option("late", miss=0.9)
    assert chosen(policy, [busy, late]) == "busy"  # level 1: among those that meet the SLO


def test_load_is_weighted_by_speed_if_all_profiles_are_known() -> None:
    slow_profile = EngineProfile("s", 0.0, 0.1, 1e-3, 1e-8, 0.0, 100_000)
    fast = option("fast", running=5, profile=PROFILE)
    slow = option("slow", running=1, profile=slow_profile)
    assert least_busy([fast, slow], [0, 1]) == 0
    slow.instance.profiles.clear()
    assert least_busy([fast, slow], [0, 1]) == 1
    assert least_busy([fast, slow], [0]) == 0


# --- predictions by column -----------------------------------------------------------------------------
class ByColumn:
    """The columns of some options."""

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = options

    def __getattr__(self, name: str) -> list[float | None]:
        return [getattr(each.prediction, name) for each in self._options]


@pytest.mark.parametrize("make", [BestFit, LeastLatency])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_columns_decide_as_the_predictions_do(
    make: Callable[[float, ExpectedTime], Policy], level: int
) -> None:
    drawn = Random(7)
    for number in range(200):
        options = [
            option(
                f"e{at}",
                miss=drawn.choice((0.0, 0.05, 0.3, 0.97)),
                e2e=drawn.choice((1.0, 2.0)),
                running=drawn.randrange(3),
                profile=drawn.choice((PROFILE, None)),
                promised=drawn.choice(((), (0.04,))),
            )
            for at in range(drawn.randrange(1, 6))
        ]
        one, other = make(0.1, ExpectedTime()), make(0.1, ExpectedTime())
        one._guard.level = other._guard.level = level  # type: ignore[attr-defined]
        plain = one.choose(request(number), options, Random(0))
        found = other.choose(request(number), Options(options, ByColumn(options)), Random(0))
        assert found == plain
        assert list(found.reasons) == [plain.reasons[at] for at in range(len(options))]
        assert found.reasons[found.index] is None
        assert found.reasons[:2] == list(plain.reasons)[:2]
