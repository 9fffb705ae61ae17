"""What `slo` and `latency` look at beside the request itself: those that are there already, and what came of it."""

from __future__ import annotations

from random import Random

import pytest

from policies.doubt import Doubt
from policies.latency import DOUBTED, LeastLatency, added_s, least_busy
from policies.slo import BestFit, promises_broken
from router.core.interfaces import Option
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, Request, Slo

SLO = Slo(1.0, 0.1)
PROFILE = EngineProfile("p", 0.0, 0.01, 1e-4, 1e-8, 0.0, 100_000)


def option(
    name: str,
    *,
    miss: float = 0.0,
    e2e: float = 1.0,
    tpot: float = 0.02,
    running: int = 0,
    promised: tuple[float, ...] = (),
    per_hour: float | None = None,
    profile: EngineProfile | None = None,
) -> Option:
    candidate = Candidate(name, "m", "m")
    instance = Instance(name, "vllm", {"m": candidate}, usd_per_hour=per_hour)
    instance.in_flight = running
    instance.promised_tpot_s = sorted(promised)
    if profile is not None:
        instance.profiles["m"] = profile
    told = Prediction(p_miss=miss, e2e_s_mean=e2e, tpot_s=tpot, output_tokens_mean=100.0, ttft_s_p50=0.1)
    return Option(candidate, instance, told)


def request(number: int = 0, slo: Slo | None = SLO) -> Request:
    return Request(id=f"r{number}", arrived_at=0.0, policy="slo", models=("m",), prompt_tokens=1000, slo=slo)


def taken(policy: BestFit | LeastLatency, options: list[Option], slo: Slo | None = SLO) -> str:
    choice = policy.choose(request(slo=slo), options, Random(0))
    return options[choice.index].candidate.instance


def place(policy: BestFit | LeastLatency, request: Request, option: Option) -> None:
    policy.placed(request, [option], policy.choose(request, [option], Random(0)))


# --- others' promises -----------------------------------------------------------------------------------
def test_promises_are_broken_where_the_predicted_tpot_comes_within_a_margin_of_them() -> None:
    there = option("a", tpot=0.04, promised=(0.03, 0.045, 0.06, 0.1))
    assert promises_broken(there) == 2  # 0.04 x 1.2 = 0.048
    assert promises_broken(option("a", tpot=0.04)) == 0
    there.prediction = None
    assert promises_broken(there) == 0


def test_slo_spares_those_who_were_promised_a_tpot_before_it_saves_money() -> None:
    cheap = option("cheap", per_hour=1.0, tpot=0.05, promised=(0.04, 0.05))
    dear = option("dear", per_hour=4.0, tpot=0.02, promised=(0.04,))
    policy = BestFit(0.1)
    choice = policy.choose(request(), [cheap, dear], Random(0))
    assert choice.index == 1
    assert choice.reasons == ["others there would lose their TPOT (2)", None]
    cheap.instance.promised_tpot_s = [0.25]
    assert taken(policy, [cheap, dear]) == "cheap"


def test_what_is_lost_everywhere_goes_where_it_disturbs_nobody() -> None:
    hurts = option("hurts", miss=0.95, tpot=0.04, promised=(0.04,))
    harmless = option("harmless", miss=0.99, tpot=0.04, promised=(0.25,))
    choice = BestFit(0.1).choose(request(), [hurts, harmless], Random(0))
    assert (choice.index, choice.defer) == (1, False)


@pytest.mark.parametrize(
    "busy",
    [
        {"promised": (0.04,)},
        {"waiting": 1},
        {"kv_usage": 0.9},
    ],
)
def test_what_is_lost_everywhere_is_deferred_while_nobody_has_room(busy: dict[str, object]) -> None:
    only = option("a", miss=0.95, tpot=0.04, promised=busy.get("promised", ()))  # type: ignore[arg-type]
    only.instance.awaiting_first_token = busy.get("waiting", 0)  # type: ignore[assignment]
    only.instance.report = LoadReport(kv_usage=busy.get("kv_usage"))  # type: ignore[arg-type]
    assert BestFit(0.1).choose(request(), [only], Random(0)).defer


def test_what_may_still_be_kept_is_not_deferred_and_takes_the_least_miss() -> None:
    options = [option("a", miss=0.5, promised=(0.02,)), option("b", miss=0.6)]
    choice = BestFit(0.1).choose(request(), options, Random(0))
    assert (choice.index, choice.defer) == (0, False)


# --- the risk that is taken -----------------------------------------------------------------------------
def test_slo_takes_less_risk_while_everyone_finds_an_option_and_more_when_some_do_not() -> None:
    policy = BestFit(0.1)
    slow = option("slow", miss=0.08, per_hour=1.0)
    fast = option("fast", miss=0.001, per_hour=4.0)
    assert taken(policy, [slow, fast]) == "slow"  # epsilon is the rule
    for number in range(600):
        place(policy, request(number), fast)
    assert taken(policy, [slow, fast]) == "fast"
    assert taken(policy, [slow]) == "slow"
    for number in range(12):
        place(policy, request(number), option("none", miss=0.4))
    assert taken(policy, [slow, fast]) == "slow"


# --- what it adds to others ------------------------------------------------------------------------------
def test_latency_counts_what_it_adds_to_those_that_are_there() -> None:
    crowded = option("crowded", e2e=1.0, running=40, profile=PROFILE)
    quiet = option("quiet", e2e=1.2, running=1, profile=PROFILE)
    assert added_s(request(), crowded) == pytest.approx(40 * added_s(request(), quiet))
    # 1,000 prompt tokens at 1e-4 s each, and half of 100 steps that read 1,050 more tokens
    assert added_s(request(), quiet) == pytest.approx(PROFILE.prefill_s(1000) + 50 * 1050e-8)
    assert taken(LeastLatency(0.1), [crowded, quiet]) == "quiet"
    crowded.instance.profiles.clear()
    assert added_s(request(), crowded) == 0.0


# --- doubt -----------------------------------------------------------------------------------------------
def misses(doubt: Doubt, count: int, met: bool = False) -> None:
    for number in range(count):
        doubt.expects(f"m{number}", 0.01)
        doubt.heard(f"m{number}", met)


def test_more_misses_than_were_expected_raise_doubt_and_it_passes() -> None:
    doubt = Doubt(0.1, most=2)
    misses(doubt, 10)
    assert doubt.level == 0
    misses(doubt, 10)
    assert doubt.level == 1
    misses(doubt, 500, met=True)
    assert doubt.level == 0


def test_what_was_sent_at_a_risk_or_ended_otherwise_says_nothing() -> None:
    doubt = Doubt(0.1, most=1)
    for number in range(200):
        doubt.expects(f"risky{number}", 0.5)
        doubt.heard(f"risky{number}", False)
        doubt.expects(f"left{number}", 0.0)
        doubt.heard(f"left{number}", None)
        doubt.heard(f"unknown{number}", False)
    assert doubt.level == 0


def test_doubt_comes_back_for_longer_and_shrinks_when_predictions_hold() -> None:
    doubt = Doubt(0.1, most=1)

    def lasts() -> int:
        misses(doubt, 20)
        assert doubt.level == 1
        count = 0
        while doubt.level:
            misses(doubt, 1, met=True)
            count += 1
        return count

    first, second = lasts(), lasts()
    assert second > 1.8 * first
    misses(doubt, 20_000, met=True)
    assert lasts() < 1.2 * first


def test_in_doubt_slo_packs_no_more_and_then_asks_the_load_alone() -> None:
    policy = BestFit(0.1)
    slow = option("slow", per_hour=1.0, e2e=9.0, running=0)
    fast = option("fast", per_hour=4.0, e2e=1.0, running=5)
    options = [slow, fast]
    assert taken(policy, options) == "slow"
    for level, expected in ((1, "fast"), (2, "slow")):
        for number in range(20):
            place(policy, request(number), fast)
            policy.ended(request(number), fast.candidate, False, 0.0)
        assert policy._doubt.level == level
        assert taken(policy, options) == expected
    assert DOUBTED in policy.choose(request(), options, Random(0)).reasons


def test_in_doubt_latency_asks_the_load_but_not_for_requests_without_an_slo() -> None:
    policy = LeastLatency(0.1)
    busy, idle = option("busy", e2e=1.0, running=9), option("idle", e2e=5.0)
    for number in range(20):
        place(policy, request(number), busy)
        policy.ended(request(number), busy.candidate, False, 0.0)
    assert taken(policy, [busy, idle]) == "idle"
    assert taken(policy, [busy, idle], slo=None) == "busy"
    late = option("late", miss=0.9)
    assert taken(policy, [busy, late]) == "busy"  # among those that keep it, at first


def test_the_load_is_weighed_by_speed_where_it_is_known_of_all() -> None:
    slow_profile = EngineProfile("s", 0.0, 0.1, 1e-3, 1e-8, 0.0, 100_000)
    fast = option("fast", running=5, profile=PROFILE)
    slow = option("slow", running=1, profile=slow_profile)
    assert least_busy([fast, slow], [0, 1]) == 0
    slow.instance.profiles.clear()
    assert least_busy([fast, slow], [0, 1]) == 1
    assert least_busy([fast, slow], [0]) == 0
