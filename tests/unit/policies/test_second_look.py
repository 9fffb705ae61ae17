"""What a second look is worth, and where `cost` takes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import NormalDist, fmean, variance
from typing import Any

import pytest

from policies import second_look
from policies.cost import LeastSpend
from policies.cost_scope import CostScope
from policies.quality_price_estimator import Offer, QualityPriceEstimator
from policies.second_look import ScoreScale, after, dprime, other_after, plan
from router.core.interfaces import CheckedAnswer, Option
from router.core.state import Instance
from router.core.types import AnswerCheck, Candidate, Prediction, Price, Request, Slo, Targets

NORMAL = NormalDist()
FREE = AnswerCheck(2.0, Price(), 0, 0, limit_s=1.0)


def z_of(rng: Random, good: bool, d: float) -> float:
    return rng.gauss(d / 2 if good else -d / 2, 1.0)


@pytest.mark.parametrize(
    ("quality", "other", "price", "d"),
    [(0.6, 0.8, 0.1, 1.5), (0.5, 0.9, 0.3, 3.0), (0.8, 0.7, 0.05, 1.0), (0.3, 0.6, 0.0, 0.5)],
)
def test_a_plan_is_worth_what_its_checks_are_worth(
    quality: float, other: float, price: float, d: float
) -> None:
    """Over 2,000 equally likely scores of a good answer, and as many of a poor one."""
    found = plan(quality, other, price, d)
    assert found is not None
    goes_on, worth, count = 0.0, 0.0, 2000
    for mean, share in ((d / 2, quality), (-d / 2, 1.0 - quality)):
        for at in range(count):
            p = after(quality, NORMAL.inv_cdf((at + 0.5) / count) + mean, d)
            then = other_after(other, quality, p)
            goes_on += share / count * (then - p > price)
            worth += share / count * (then if then - p > price else p)
    assert found.goes_on == pytest.approx(goes_on, abs=1e-3)
    assert found.quality == pytest.approx(worth, abs=1e-4)
    assert found.quality - found.goes_on * price > max(quality, other - price) - 1e-9


def test_after_a_check_an_answer_is_good_as_often_as_is_said() -> None:
    rng = Random(2)
    said, true = [], []
    for _ in range(50_000):
        quality = rng.choice([0.3, 0.7])
        good = rng.random() < quality
        p = after(quality, z_of(rng, good, 1.5), 1.5)
        if 0.4 < p < 0.6:
            said.append(p)
            true.append(good)
    assert fmean(said) == pytest.approx(fmean(true), abs=0.02)


def test_dprime_is_that_of_the_auc() -> None:
    rng, d = Random(3), dprime(0.8)
    better = sum(z_of(rng, True, d) > z_of(rng, False, d) for _ in range(50_000))
    assert better / 50_000 == pytest.approx(0.8, abs=0.01)


def test_no_plan_where_it_never_pays() -> None:
    assert plan(0.6, 0.8, 0.9, 2.0) is None  # the other answer costs more than it can bring
    assert plan(0.6, 0.8, 0.1, 0.0) is None  # the check knows nothing
    assert plan(0.6, 0.99, 0.0, 1.0) == (pytest.approx(1.0), pytest.approx(0.99, abs=0.01))


@pytest.mark.parametrize(
    "scored",
    [NORMAL.cdf, lambda z: 0.9 + 0.01 * z, lambda z: -2.0 + 3.0 ** (z - 4.0)],
    ids=["evenly", "lenient", "strict and bent"],
)
def test_a_scale_finds_z_whatever_the_scores_are(scored: Callable[[float], float]) -> None:
    rng, scale, d = Random(4), ScoreScale(), 1.5
    found: dict[bool, list[float]] = {True: [], False: []}
    for at in range(4000):
        good = rng.random() < 0.6
        z = scale.z(scored(z_of(rng, good, d)), 0.6, d)
        if at >= 1000:
            found[good].append(z)
    assert fmean(found[True]) == pytest.approx(d / 2, abs=0.1)
    assert fmean(found[False]) == pytest.approx(-d / 2, abs=0.1)
    assert variance(found[True]) == pytest.approx(1.0, abs=0.15)


def test_equal_scores_share_their_ranks() -> None:
    """A judge has five grades: z of each is in order, and on the whole the answers are as good as they are predicted."""
    rng, scale, d = Random(6), ScoreScale(), 2.0
    by_grade: dict[int, list[float]] = {}
    expected = []
    for at in range(4000):
        z = z_of(rng, rng.random() < 0.7, d)
        grade = sum(z > bound for bound in (-2.0, -1.0, 0.5, 1.0))
        found = scale.z(grade / 4, 0.7, d)
        if at >= 1000:
            by_grade.setdefault(grade, []).append(found)
            expected.append(after(0.7, found, d))
    means = [fmean(by_grade[grade]) for grade in range(5)]
    assert means == sorted(means)
    assert fmean(expected) == pytest.approx(0.7, abs=0.03)


def test_a_scale_forgets_old_scores() -> None:
    scale = ScoreScale()
    for score in [0.9] * 600 + [0.1] * 600:
        scale.z(score, 0.5, 1.0)
    assert scale.z(0.2, 0.5, 1.0) > 3.0
    assert len(scale._sorted) == len(scale._recent) == 500


def test_an_offer_adds_up_spend_and_risk() -> None:
    first, other = Offer(0.55, 1.0, 0.6), Offer(0.7, 4.0, 0.9)
    found = second_look.offer(first, other, 0.5, 10.0, 2.0)
    expected = plan(0.6, 0.9, 0.4 + 0.2, 2.0)  # the other one's risk is a part of its price
    assert found.quality == expected.quality
    assert found.cost_usd == pytest.approx(1.0 + 0.5 + expected.goes_on * 4.0)
    assert found.quality - found.value == pytest.approx(0.05 + expected.goes_on * 0.2)


# --- `cost` -------------------------------------------------------------------------------------------------
def option(name: str, quality: float, usd: float, **fields: float | None) -> Option:
    candidate = Candidate(name, name, name, Price(output_usd_per_mtok=usd * 1e4))  # an answer of 100 tokens
    values = {"e2e_s_mean": 1.0, "e2e_s_p95": 2.0, "ttft_s_p95": 1.0, "output_tokens_p90": 200.0, **fields}
    prediction = Prediction(quality=quality, cost_usd=usd, output_tokens_mean=100.0, **values)
    return Option(candidate, Instance(name, "vllm", {name: candidate}), prediction)


def options(**fields: float | None) -> list[Option]:
    return [option("large", 0.9, 10.0, **fields), option("small", 0.6, 1.0, **fields)]


def request(number: int = 0, check: AnswerCheck | None = FREE, **fields: object) -> Request:
    told: Any = {"prompt_tokens": 10, "client_streams": False, "check": check} | fields
    return Request(str(number), 0.0, "cost", ("large", "small"), **told)


def answered(by: Option, score: float) -> CheckedAnswer:
    assert by.prediction is not None
    return CheckedAnswer(by.candidate, by.prediction, 1.0, score)


def cost(**targets: float | None) -> LeastSpend:
    held = Targets(**targets)  # type: ignore[arg-type]
    return LeastSpend(lambda key: held)


def test_a_second_look_is_taken_where_it_pays() -> None:
    choice = cost().choose(request(), options(), Random(0))
    assert (choice.index, choice.check, choice.alternatives) == (1, True, [])
    assert choice.reasons[0] is not None
    assert choice.reasons[1] is None
    assert not cost().choose(request(check=None), options(), Random(0)).check
    assert not cost().choose(request(check=FREE._replace(dprime=0.1)), options(), Random(0)).check
    expensive = FREE._replace(price=Price(output_usd_per_mtok=1e6), verdict_tokens=20)
    assert not cost().choose(request(check=expensive), options(), Random(0)).check


def test_no_second_look_where_a_target_or_the_cap_could_break() -> None:
    # Both answers take two seconds at most in 95 of 100 cases, and the check one.
    slo = {"p_miss": 0.0}
    for target, taken in (
        (Slo(e2e_s=5.1), True),
        (Slo(e2e_s=4.9), False),
        (Slo(ttft_s=4.1), True),
        (Slo(ttft_s=3.9), False),
    ):
        assert cost().choose(request(slo=target), options(**slo), Random(0)).check is taken, target
    assert not cost().choose(request(slo=Slo(e2e_s=60.0)), options(e2e_s_p95=None), Random(0)).check
    # The second answer must not be likelier to decode too slowly than the first one.
    for misses, taken in (((0.02, 0.02), True), ((0.03, 0.02), False)):
        offered = [option("large", 0.9, 10.0, p_miss=misses[0]), option("small", 0.6, 1.0, p_miss=misses[1])]
        assert cost().choose(request(slo=Slo(tpot_s=0.1)), offered, Random(0)).check is taken
    unknown: dict[str, Any] = {"output_tokens_p90": None}
    for cap_usd, most_tokens, told, taken in (
        (22.1, None, {}, True),  # answers of 200 tokens
        (21.9, None, {}, False),
        (11.1, 100, {}, True),
        (10.9, 100, {}, False),
        (22.1, 900, {}, True),
        (22.1, 200, unknown, True),
        (1e6, None, unknown, False),
    ):
        asked = request(max_cost_usd=cap_usd, max_tokens=most_tokens)
        assert cost().choose(asked, options(**told), Random(0)).check is taken


def test_the_check_decides() -> None:
    policy = cost()
    offered = options()
    for number in range(40):  # the scale of its scores
        answer = answered(offered[1], 0.2 + 0.6 * (number % 2))
        policy.reconsider(request(number), answer, offered, Random(0))
    poor, good = answer._replace(score=0.1), answer._replace(score=0.9)
    chosen = policy.reconsider(request(), poor, offered, Random(0))
    assert (chosen.index, chosen.check) == (0, False)
    assert policy.reconsider(request(), good, offered, Random(0)) is None
    # Nobody else is there, is another model, is in time, or can be paid.
    assert policy.reconsider(request(), poor, [], Random(0)) is None
    assert policy.reconsider(request(), poor, offered[1:], Random(0)) is None
    assert policy.reconsider(request(slo=Slo(e2e_s=9.0)), poor, options(p_miss=0.5), Random(0)) is None
    assert policy.reconsider(request(max_cost_usd=20.9), poor, offered, Random(0)) is None
    assert policy.reconsider(request(max_cost_usd=21.1), poor, offered, Random(0)) is not None


def test_a_replaced_answer_is_no_repeated_attempt() -> None:
    policy, offered = cost(), options()
    asked = request()
    choice = policy.choose(asked, offered, Random(0))
    policy.placed(asked, offered, choice)
    again = policy.reconsider(asked, answered(offered[1], 0.0), offered, Random(0))
    assert again is not None
    policy.placed(asked, offered, again)
    policy.ended(asked, offered[0].candidate, None, 1.0)
    assert policy._repeated.get("small", 0.0) == 0.0
    assert policy._repeated["large"] == 0.0


def run(d: float, told: float, check_usd: float, quality: float | None = None) -> tuple[float, float]:
    """Mean quality and spend of 2,000 requests; d = 0: without a check."""
    rng, policy, offered = Random(5), cost(quality=quality), options()
    check = AnswerCheck(told, Price(output_usd_per_mtok=check_usd * 1e6), 0, 1, 0.0) if d else None
    qualities, spend = [], 0.0
    for number in range(2000):
        small = rng.uniform(0.3, 0.9)
        truth = {"small": rng.random() < small, "large": rng.random() < 0.9}
        offered[1].prediction = replace(offered[1].prediction or Prediction(), quality=small)
        asked = request(number, check)
        choice = policy.choose(asked, offered, rng)
        policy.placed(asked, offered, choice)
        name = offered[choice.index].candidate.model
        spend += 10.0 if name == "large" else 1.0
        if choice.check:
            spend += check_usd
            answer = answered(offered[choice.index], NORMAL.cdf(z_of(rng, truth[name], d)))
            other = policy.reconsider(asked, answer, offered, rng)
            if other is not None:
                policy.placed(asked, offered, other)
                name = offered[other.index].candidate.model
                spend += 10.0 if name == "large" else 1.0
        policy.ended(
            asked, next(each.candidate for each in offered if each.candidate.model == name), None, 0.0
        )
        qualities.append(float(truth[name]))
    return fmean(qualities), spend / 2000


def test_it_saves_at_the_same_target() -> None:
    without = run(0.0, 0.0, 0.0, quality=0.85)
    checked = run(2.5, 2.5, 0.3, quality=0.85)
    assert without[0] == pytest.approx(0.85, abs=0.02)
    assert checked[0] > 0.83
    assert checked[1] < 0.8 * without[1]


def test_a_check_that_is_told_to_be_poor_changes_little() -> None:
    without = run(0.0, 0.0, 0.0, quality=0.85)
    told = run(2.5, 0.2, 0.3, quality=0.85)
    assert told == (pytest.approx(without[0], abs=0.01), pytest.approx(without[1], rel=0.03))


def test_a_target_may_be_higher_than_single_answers_reach() -> None:
    offered = QualityPriceEstimator()
    for _ in range(50):
        offered.add([Offer(0.5, 1.0, 0.5), Offer(0.9, 10.0, 0.9)], 100, Offer(0.95, 6.0, 0.95))
    assert offered.reachable == pytest.approx(0.9)
    assert offered.reachable_with_looks == pytest.approx(0.95)
    scope = CostScope(offered, usual_usd=5.5)
    step_usd = 5.0 / 0.45  # from the small model to the second look
    assert scope.quality_usd(Targets(quality=0.94)) == pytest.approx(step_usd, rel=0.1)
    assert scope.wished(Targets(quality_slack=0.02)) == pytest.approx(0.89)
