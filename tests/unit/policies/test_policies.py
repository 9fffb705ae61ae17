"""One table for each policy: the options it sees and what it must choose."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from policies import PolicySettings, create_all
from policies.expected import ExpectedTime
from policies.latency import LeastLatency
from policies.least_load import LeastLoad
from policies.lmetric import LMetric
from policies.power_of_two import PowerOfTwo
from policies.price import LeastPrice
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.slo import BestFit
from router.core.interfaces import Option, Policy
from router.core.profile import EngineProfile
from router.core.types import LoadReport, Request, Slo
from tests.contract.policies.snapshot import snapshot
from tests.unit.policies.made_options import option

REQUEST = Request("r", 0.0, "x", ("m",), prompt_tokens=100)
WITH_SLO = replace(REQUEST, slo=Slo(ttft_s=1.0))
FAST, SLOW = (EngineProfile("p", 0.0, step_s, 0.0, 0.0, 0.0, 1000) for step_s in (0.01, 0.03))


def test_settings_reach_the_policies() -> None:
    policies = create_all(PolicySettings(confidence=0.8, ttft_weight=0.5))
    latency, slo = policies["latency"], policies["slo"]
    assert isinstance(latency, LeastLatency)
    assert isinstance(slo, BestFit)
    assert latency.epsilon == slo.epsilon == 0.2
    assert latency.time.ttft_weight == slo.time.ttft_weight == 0.5


@pytest.mark.parametrize("wrong", [{"confidence": 1.0}, {"confidence": 0.0}, {"ttft_weight": 1.5}])
def test_settings_out_of_range_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PolicySettings(**wrong)


# --- what a placed request changes ----------------------------------------------------------------------
STATELESS = (
    "random", "least_load", "power_of_two", "lmetric", "price", "relevance", "predicted_latency",
    "most_headroom",
)  # fmt: skip


@pytest.mark.parametrize("name", STATELESS)
def test_placing_changes_nothing_in_a_policy_that_learns_nothing_from_it(name: str) -> None:
    policy = create_all()[name]
    options = [option("a", e2e=1.0, miss=0.3), option("b", e2e=2.0, miss=0.01)]
    before = snapshot(policy)
    policy.placed(WITH_SLO, options, policy.choose(WITH_SLO, options, Random(1)))
    assert snapshot(policy) == before


# --- random -------------------------------------------------------------------------------------------
def test_random_with_a_seed_depends_on_the_candidates_not_their_order() -> None:
    options = [option(name) for name in "dacb"]
    taken = set()
    for seed in range(30):
        request = replace(REQUEST, seed=seed)
        name = options[RandomChoice().choose(request, options, Random(3)).index].candidate.instance
        again = options[::-1]
        assert again[RandomChoice().choose(request, again, Random(4)).index].candidate.instance == name
        taken.add(name)
    assert taken == set("abcd")


# --- round_robin --------------------------------------------------------------------------------------
def turns(policy: RoundRobin, request: Request, options: list[Option], count: int) -> str:
    names = ""
    for _ in range(count):
        choice = policy.choose(request, options, Random(0))
        policy.placed(request, options, choice)
        names += options[choice.index].candidate.instance
    return names


def test_round_robin_cycles_in_order_of_name() -> None:
    assert turns(RoundRobin(), REQUEST, [option("c"), option("a"), option("b")], 7) == "abcabca"


def test_round_robin_skips_an_option_that_is_gone_and_resumes_it() -> None:
    policy = RoundRobin()
    a, b, c = option("a"), option("b"), option("c")
    assert turns(policy, REQUEST, [a, b, c], 1) == "a"
    assert turns(policy, REQUEST, [a, c], 3) == "cac"
    assert turns(policy, REQUEST, [a, b, c], 3) == "abc"


def test_round_robin_keeps_a_position_for_each_model() -> None:
    policy = RoundRobin()
    other = replace(REQUEST, models=("n",))
    ours = [option("a"), option("b")]
    theirs = [option("a", model="n"), option("b", model="n")]
    names = ""
    for _ in range(2):
        names += turns(policy, REQUEST, ours, 1) + turns(policy, other, theirs, 1)
    assert names == "aabb"


def test_round_robin_forgets_the_oldest_of_too_many_model_sets() -> None:
    policy = RoundRobin()
    options = [option("a"), option("b")]
    for number in range(1500):
        turns(policy, replace(REQUEST, models=("m", f"m{number}")), options, 1)
    assert turns(policy, replace(REQUEST, models=("m", "m1499")), options, 1) == "b"
    assert turns(policy, replace(REQUEST, models=("m", "m0")), options, 1) == "a"


# --- least_load ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("running", "index"), [((3, 1, 2), 1), ((0, 1, 2), 0), ((5, 4, 3), 2), ((7,), 0)])
def test_least_load(running: tuple[int, ...], index: int) -> None:
    options = [option(f"i{at}", running=load) for at, load in enumerate(running)]
    choice = LeastLoad().choose(REQUEST, options, Random(0))
    assert choice.index == index
    assert choice.scores == list(running)
    assert choice.propensity == 1.0
    assert [reason is None for reason in choice.reasons] == [at == index for at in range(len(running))]


def test_least_load_corrects_a_report_by_what_was_dispatched_since() -> None:
    stale, busy = option("a"), option("b")
    stale.instance.takes_report(LoadReport(running=0, waiting=0), 0.0)
    for _ in range(3):
        stale.instance.dispatched(10)
    busy.instance.takes_report(LoadReport(running=1, waiting=1), 0.0)
    assert LeastLoad().choose(REQUEST, [stale, busy], Random(0)).index == 1


@pytest.mark.parametrize(
    ("policy", "busiest", "propensity"),
    [(RandomChoice(), 0, 1 / 4), (LeastLoad(), 1, 1 / 3), (PowerOfTwo(), 9, 1 / 3)],
)
def test_equal_options_are_equally_likely(policy: Policy, busiest: int, propensity: float) -> None:
    """A contract test holds propensities against frequencies."""
    options = [option("a", running=busiest), option("b"), option("c"), option("d")]
    assert policy.choose(REQUEST, options, Random(0)).propensity == pytest.approx(propensity)


# --- power_of_two -------------------------------------------------------------------------------------
def test_power_of_two_takes_the_less_busy_of_two_and_never_the_busiest() -> None:
    options = [option(f"i{load}", running=load) for load in range(4)]
    rng = Random(3)
    for _ in range(100):
        choice = PowerOfTwo().choose(REQUEST, options, rng)
        drawn = [score for score in choice.scores if score is not None]
        assert len(drawn) == 2
        assert choice.scores[choice.index] == min(drawn)
        # 6 pairs: the idlest wins in 3 of them, the next in 2, then 1.
        assert choice.propensity == pytest.approx((3 - choice.index) / 6)


# --- lmetric ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("loads", "cached", "index"),
    [
        # (running, pending prefill tokens): new prefill tokens x (batch + 1), prompt of 100
        (((1, 0), (0, 0)), {}, 1),  # 200, 100
        (((1, 0), (0, 150)), {}, 0),  # 200, 250
        (((3, 0), (0, 0)), {"i0": 90.0}, 0),  # 40, 100
        (((9, 0), (0, 0)), {"i0": 80.0}, 1),  # 200, 100
    ],
)
def test_lmetric(loads: tuple[tuple[int, int], ...], cached: dict[str, float], index: int) -> None:
    options = [
        option(f"i{at}", running=running, pending=pending) for at, (running, pending) in enumerate(loads)
    ]
    policy = LMetric(lambda request, instance: cached.get(instance, 0.0))
    assert policy.choose(replace(REQUEST, prefix=(1, 2)), options, Random(0)).index == index


def test_lmetric_counts_the_batch_for_a_fully_cached_prompt() -> None:
    options = [option("a", running=4), option("b", running=2)]
    choice = LMetric(lambda request, instance: 100.0).choose(
        replace(REQUEST, prefix=(1,)), options, Random(0)
    )
    assert choice.scores == [5.0, 3.0]


# --- price --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "index"),
    [
        (((3e-4, 1.0), (1e-4, 9.0)), 1),  # cheaper wins, however slow
        (((1e-4, 2.0), (1e-4, 1.0)), 1),  # replicas: the faster one
        (((1e-4, 1.0), (1e-4 * (1 + 1e-12), 0.5)), 1),  # equal except for rounding
        (((1e-4, 1.0), (1e-4, 1.0)), 0),  # then by name
        (((None, 1.0), (1e-4, 9.0)), 1),  # an unknown price comes last
        (((0.0, None), (0.0, 3.0)), 1),
    ],
)
def test_price(rows: tuple[tuple[float | None, float | None], ...], index: int) -> None:
    options = [option(f"i{at}", cost=cost, e2e=e2e) for at, (cost, e2e) in enumerate(rows)]
    choice = LeastPrice().choose(REQUEST, options, Random(0))
    assert choice.index == index
    assert choice.scores == [cost for cost, _ in rows]


def test_price_gives_its_reasons() -> None:
    options = [
        option("a", cost=1e-4, e2e=0.5),
        option("b", cost=2e-4, e2e=0.1),
        option("c", cost=1e-4, e2e=2),
    ]
    assert LeastPrice().choose(REQUEST, options, Random(0)).reasons == [
        None,
        "more expensive: 0.0002 USD expected, against 0.0001 USD",
        "same price but not faster: 2 s expected, against 0.5 s",
    ]


# --- latency ------------------------------------------------------------------------------------------
def test_latency_gives_its_reasons() -> None:
    options = [
        option("a", e2e=0.8, miss=0.0),
        option("b", e2e=1.9, miss=0.0),
        option("c", e2e=0.6, miss=0.42),
    ]
    assert LeastLatency(0.1, ExpectedTime()).choose(WITH_SLO, options, Random(0)).reasons == [
        None,
        "more time in all (TTFT, E2E, the delay to other requests, the risk of a miss): 1.9 s, against 0.8 s",
        "more time in all (TTFT, E2E, the delay to other requests, the risk of a miss): 1.02 s, against 0.8 s",
    ]


# --- slo ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "index"),
    [
        # the cheapest per hour that meets the SLO
        ([option("a", per_hour=4.0, miss=0.0), option("b", per_hour=1.0, miss=0.05)], 1),
        ([option("a", per_hour=4.0, miss=0.0), option("b", per_hour=1.0, miss=0.2)], 0),
        # one of those that meet it has no price per hour: the tariff decides
        ([option("a", per_hour=4.0, cost=1e-4, miss=0.0), option("b", cost=2e-4, miss=0.0)], 0),
        # an option that misses the SLO does not count
        (
            [
                option("a", per_hour=4.0, cost=1e-4, miss=0.0),
                option("b", per_hour=1.0, cost=2e-4, miss=0.0),
                option("c", miss=0.9),
            ],
            1,
        ),
        # equal cost: the slowest hardware
        ([option("a", cost=0.0, profile=FAST, miss=0.0), option("b", cost=0.0, profile=SLOW, miss=0.0)], 1),
        ([option("a", cost=0.0, tpot=0.03, miss=0.0), option("b", cost=0.0, tpot=0.01, miss=0.0)], 0),
        # replicas: the least time, then risk, then name
        (
            [
                option("a", cost=0.0, profile=FAST, miss=0.05, e2e=1.0),
                option("b", cost=0.0, profile=FAST, miss=0.01, e2e=2.0),
            ],
            0,
        ),
        (
            [
                option("a", cost=0.0, profile=FAST, miss=0.05, e2e=1.0),
                option("b", cost=0.0, profile=FAST, miss=0.01, e2e=1.0),
            ],
            1,
        ),
        ([option("a", miss=0.0, e2e=2.0), option("b", miss=0.0, e2e=1.0)], 1),
        ([option("b", miss=0.0, e2e=1.0), option("a", miss=0.0, e2e=1.0)], 1),
        # none meets it: the least miss
        ([option("a", per_hour=1.0, miss=0.9), option("b", per_hour=9.0, miss=0.3)], 1),
    ],
)
def test_slo(options: list[Option], index: int) -> None:
    choice = BestFit(0.1, ExpectedTime()).choose(WITH_SLO, options, Random(0))
    assert choice.index == index
    assert choice.reasons[index] is None
    assert all(reason for at, reason in enumerate(choice.reasons) if at != index)


def test_slo_without_an_slo_is_the_least_latency() -> None:
    options = [option("a", per_hour=1.0, e2e=2.0), option("b", per_hour=9.0, e2e=1.0)]
    choice = BestFit(0.1, ExpectedTime()).choose(REQUEST, options, Random(0))
    assert choice.index == 1
    assert choice.scores == [2.0, 1.0]


def test_slo_keeps_the_fast_instance_free_until_it_is_needed() -> None:
    """On the same fleet a loose request goes to the slow instance, a tight one to the fast one."""
    loose = [option("fast", per_hour=4.0, miss=0.0), option("slow", per_hour=1.0, miss=0.02)]
    tight = [option("fast", per_hour=4.0, miss=0.03), option("slow", per_hour=1.0, miss=0.99)]
    policy = BestFit(0.1, ExpectedTime())
    assert policy.choose(WITH_SLO, loose, Random(0)).index == 1
    choice = policy.choose(WITH_SLO, tight, Random(0))
    assert choice.index == 0
    assert choice.reasons[1] == "would miss its SLO with probability 0.99"
    assert policy.choose(WITH_SLO, loose, Random(0)).reasons[0] == "a cheaper instance meets the SLO"
