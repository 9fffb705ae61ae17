"""The text-only policies: what they pick and learn, and how they work without an estimator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

import pytest

from policies import POLICIES, PolicySettings
from policies.budget_online import OBSERVED, price_of_money
from policies.eccos import HEADROOM
from policies.llm_router_rr import threshold
from policies.quality_window import ModelOffer, Offers, Window, best_single, price_usd, upgrades_of
from policies.scopes import Scopes
from policies.text_picking import offers
from router.core.interfaces import Option, Policy, TextEstimates
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Price, PromptFeatures, Request, Targets

PRICED = ("knn_rr", "clusters_rr", "logistic_rr", "eccos_rr", "eccos_r_rr", "llm_router_rr")
TEXT = (*PRICED, "budget_online", "best_single")
HARD, EASY = 1, 0
#: Each model's quality on easy and hard prompts, and USD per million output tokens.
FLEET: Mapping[str, tuple[float, float, float]] = {"big": (0.9, 0.9, 10.0), "small": (0.9, 0.3, 1.0)}


def option(
    instance: str, model: str, price: float, quality: float | None = None, slots: int | None = None
) -> Option:
    candidate = Candidate(instance, model, model, Price(0.0, price), quality=quality)
    return Option(candidate, Instance(instance, "vllm", {model: candidate}, max_concurrency=slots))


def fleet(slots: int | None = None) -> list[Option]:
    return [
        option(f"{model}-{replica}", model, price, slots=slots)
        for model, (_, _, price) in FLEET.items()
        for replica in "ab"
    ]


def estimator(features: PromptFeatures, models: Sequence[str]) -> TextEstimates:
    """Reads the difficulty from the prompt's only word."""
    hard = features.head[0]
    return TextEstimates([FLEET[model][hard] for model in models], [100.0] * len(models))


NAMES = ("mean", "knn", "clusters", "logistic", "eccos_t", "eccos_r", "factorisation")


def built(name: str, targets: Targets | None = None) -> Policy:
    held = targets or Targets()
    return POLICIES[name](PolicySettings(text=dict.fromkeys(NAMES, estimator), targets=lambda key: held))


def request(number: int, hard: int, key: str | None = None) -> Request:
    features = PromptFeatures((hard,), (), (1, 1, 1, 0, 0, 0, 0, 0))
    return Request(f"r{number}", 0.0, "x", tuple(FLEET), prompt_tokens=10, features=features, key=key)


def place(policy: Policy, request_: Request, options: list[Option], rng: Random) -> Option:
    choice = policy.choose(request_, options, rng)
    policy.placed(request_, options, choice)
    return options[choice.index]


def served(
    policy: Policy, count: int, options: list[Option], key: str | None = None
) -> list[tuple[int, str]]:
    """(difficulty, instance taken) of alternating easy and hard requests."""
    rng, found = Random(5), []
    for number in range(count):
        request_ = request(number, number % 2, key)
        found.append((number % 2, place(policy, request_, options, rng).candidate.instance))
    return found


@pytest.mark.parametrize("name", PRICED)
def test_hard_prompts_go_to_the_capable_model_and_easy_ones_to_the_cheap_one(name: str) -> None:
    late = served(built(name), 200, fleet())[100:]
    assert {instance[:-2] for hard, instance in late if hard} == {"big"}
    cheap = [instance.startswith("small") for hard, instance in late if not hard]
    assert sum(cheap) / len(cheap) > 0.9


@pytest.mark.parametrize("name", PRICED)
@pytest.mark.parametrize("target", [0.65, 0.75, 0.85])
def test_the_mean_estimated_quality_is_held_at_the_target(name: str, target: float) -> None:
    rng = Random(3)
    policy = built(name, Targets(quality=target))
    options, got = fleet(), []
    for number in range(600):
        # Gains of all sizes, so that every mean between those of the two models is possible.
        gain = rng.random() * 0.6
        estimates = TextEstimates([0.9, 0.9 - gain], [100.0, 100.0])
        request_ = request(number, EASY)
        vars(policy)["_estimator"] = lambda features, models, found=estimates: found
        taken = place(policy, request_, options, rng)
        got.append(0.9 if taken.candidate.model == "big" else 0.9 - gain)
    assert sum(got[100:]) / 500 == pytest.approx(target, abs=0.02)


@pytest.mark.parametrize("name", TEXT)
def test_replicas_of_the_model_take_turns(name: str) -> None:
    taken = [instance for _, instance in served(built(name), 400, fleet())][100:]
    for model in FLEET:
        mine = [instance for instance in taken if instance.startswith(model)]
        assert all(one != other for one, other in pairwise(mine))


@pytest.mark.parametrize("name", TEXT)
def test_without_an_estimator_priors_and_tariffs_decide(name: str) -> None:
    policy = POLICIES[name](PolicySettings())
    options = [option("a", "dear", 10.0, 0.5), option("b", "good", 5.0, 0.9), option("c", "cheap", 1.0, 0.9)]
    rng, taken = Random(1), Counter[str]()
    for number in range(300):
        request_ = Request(f"r{number}", 0.0, "x", ("dear", "good", "cheap"), prompt_tokens=10)
        taken[place(policy, request_, options, rng).candidate.model] += 1
    assert taken["cheap"] >= 300 - OBSERVED


@pytest.mark.parametrize("name", PRICED)
def test_scopes_do_not_share_a_price(name: str) -> None:
    held = {"strict": Targets(quality=0.9), "loose": Targets(quality=0.3)}
    policy = POLICIES[name](
        PolicySettings(text=dict.fromkeys(NAMES, estimator), targets=lambda key: held[key or "strict"])
    )
    options = fleet()
    strict, loose = served(policy, 100, options, "strict"), served(policy, 100, options, "loose")
    assert {instance[:-2] for hard, instance in strict[50:] if hard} == {"big"}
    assert {instance[:-2] for _, instance in loose[50:]} == {"small"}


def test_best_single_is_the_best_by_mean_then_the_cheaper() -> None:
    options = [option("a", "x", 5.0, 0.8), option("b", "y", 1.0, 0.8), option("c", "z", 0.1, 0.7)]
    choice = POLICIES["best_single"](PolicySettings()).choose(request(0, EASY), options, Random(0))
    assert choice.index == 1
    assert choice.scores == [-0.8, -0.8, -0.7]


def test_eccos_keeps_models_to_their_share_of_slots() -> None:
    options = [*fleet(slots=1), *(option(f"small-{at}", "small", 1.0, slots=7) for at in "cd")]
    policy = built("eccos_rr", Targets(quality=0.9))
    late = [instance for _, instance in served(policy, 800, options)][400:]
    share = sum(instance.startswith("big") for instance in late) / len(late)
    assert share < HEADROOM * 2 / 18 + 0.1  # without slot limits the quality target alone leads to 0.5


# --- offers -------------------------------------------------------------------------------------------
def test_an_unknown_model_gets_the_length_of_the_others_and_its_prior() -> None:
    def knows_one(features: PromptFeatures, models: Sequence[str]) -> TextEstimates:
        return TextEstimates(
            [0.6 if model == "x" else None for model in models],
            [200.0 if model == "x" else None for model in models],
        )

    options = [option("a", "x", 1.0), option("b", "y", 1.0, quality=0.7), option("c", "z", 1.0)]
    found = offers(request(0, EASY), options, knows_one)
    assert [(each.model, each.quality) for each in found] == [("x", 0.6), ("y", 0.7), ("z", 0.5)]
    assert [each.cost_usd for each in found] == [pytest.approx(200e-6)] * 3


def test_lengths_are_capped_and_multiplied_by_the_choices() -> None:
    request_ = request(0, EASY)
    request_.max_tokens, request_.choices = 50, 3
    (found,) = offers(request_, [option("a", "big", 1.0)], estimator)
    assert found.cost_usd == pytest.approx(150e-6)
    request_.decodes = False
    (found,) = offers(request_, [option("a", "big", 1.0)], estimator)
    assert found.cost_usd == 0.0


def test_a_prediction_changes_nothing() -> None:
    """A dry run predicts for every policy, and must choose the same."""
    one = option("a", "x", 1.0)
    (plain,) = offers(request(0, EASY), [one], None)
    one.prediction = Prediction(output_tokens_mean=40.0)
    (predicted,) = offers(request(0, EASY), [one], None)
    assert predicted.cost_usd == plain.cost_usd


def test_a_model_with_several_prices_costs_their_mean() -> None:
    (found,) = offers(request(0, EASY), [option("a", "big", 1.0), option("b", "big", 3.0)], estimator)
    assert found.cost_usd == pytest.approx(200e-6)


# --- the price of quality -------------------------------------------------------------------------------
def row(*models: tuple[float, float]) -> Offers:
    return [ModelOffer(name, *values) for name, values in zip("abcdef", models, strict=False)]


def test_picks_move_up_the_lower_hull() -> None:
    # b lies above the line from a to c; d costs more than c and is worse.
    upgrades = upgrades_of(row((0.5, 1.0), (0.6, 3.0), (0.9, 5.0), (0.8, 6.0)))
    assert (upgrades.least, upgrades.max_cost_usd) == (0.5, 6.0)
    assert upgrades.steps == (pytest.approx((10.0, 0.4, 4.0)),)


@pytest.mark.parametrize(
    ("target", "expected"), [(0.5, 0.0), (0.6, 10.0), (0.7, 10.0), (0.71, 20.0), (0.9, 20.0)]
)
def test_price_is_the_least_that_reaches_the_target(target: float, expected: float) -> None:
    rows = [row((0.5, 1.0), (0.9, 5.0)), row((0.5, 1.0), (0.9, 9.0))]
    assert price_usd([upgrades_of(each) for each in rows], target) == pytest.approx(expected)


def test_a_target_out_of_reach_is_worth_any_upgrade() -> None:
    assert price_usd([upgrades_of(row((0.5, 1.0), (0.9, 5.0)))], 0.95) > 1e4


def test_best_single_ignores_models_that_few_requests_allow() -> None:
    rows = [row((0.5, 1.0), (0.6, 2.0))] * 3 + [row((0.5, 1.0), (0.6, 2.0), (1.0, 1.0))]
    assert best_single(rows) == ("b", pytest.approx(0.6))
    assert best_single([row((0.6, 2.0), (0.6, 1.0))])[0] == "b"


def test_a_window_makes_up_for_its_shortfall() -> None:
    window = Window()
    for _ in range(4):
        window.add(row((0.5, 1.0), (0.9, 2.0)), "a")
    assert window.next_target(Targets(quality=0.6)) == pytest.approx(0.7)
    assert window.next_target(Targets()) == 1.0  # 0.89 + 0.39, limited to 1


def test_scopes_forget_the_one_stored_longest_ago() -> None:
    scopes: Scopes[int, list[str]] = Scopes(lambda: ["new"], most=3)
    for key in range(3):
        scopes.use(key)[0] = "old"
    scopes.use(0)
    assert scopes.use(3) == ["new"]
    assert [scopes.get(key) for key in range(4)] == [["old"], ["new"], ["old"], ["new"]]
    assert [key for key, _ in scopes.items()] == [2, 0, 3]


def test_threshold_gives_the_most_likely_wins_to_the_stronger_model() -> None:
    rows = [row((0.5, 1.0), (0.9, 5.0)), row((0.8, 1.0), (0.9, 5.0))]
    wins = [2.1972, 0.8109]  # log-odds of 0.9 minus those of 0.5 and of 0.8
    assert threshold(rows, 1, 0.85) == pytest.approx(wins[0], abs=1e-3)
    assert threshold(rows, 1, 0.9) == pytest.approx(wins[1], abs=1e-3)
    assert threshold(rows, 1, 0.6) > 100  # the weaker one is enough
    assert threshold([row((0.5, 5.0), (0.9, 1.0))], 1, 0.0) < -100  # better and cheaper


# --- budgets ------------------------------------------------------------------------------------------
def test_the_price_of_money_spends_the_budget_where_it_gains_most() -> None:
    rows = [row((0.5, 1.0), (0.5 + gain, 2.0)) for gain in (0.1, 0.2, 0.3, 0.4)]
    assert 0.2 <= price_of_money(rows, 6.0) <= 0.3  # enough for two upgrades: the last two
    assert price_of_money(rows, 8.0) == 0.0


def test_budget_online_observes_at_random_then_stays_within_its_budget() -> None:
    policy, options = built("budget_online", Targets(quality=0.75)), fleet()
    early, rng = Counter[str](), Random(9)
    for number in range(OBSERVED):
        request_ = request(number, number % 2)
        choice = policy.choose(request_, options, rng)
        assert choice.propensity == 0.5
        early[options[choice.index].candidate.model] += 1
        policy.placed(request_, options, choice)
    assert min(early.values()) > OBSERVED / 4
    late = served(policy, 400, options)
    spent = sum(FLEET[instance[:-2]][2] for _, instance in late) / len(late)
    assert policy.choose(request(1, HARD), options, rng).propensity == 1.0
    assert spent < 5.5 + 0.5  # half of the requests, the hard ones, to the big model
    assert {instance[:-2] for hard, instance in late if not hard} == {"small"}
