"""AlpaServe's planners and Headway's on the `large` set, and all of them against each other."""

from __future__ import annotations

from random import Random

import pytest

from policies.placement.alpaserve import alpaserve, alpaserve_star, greedy, score
from policies.placement.attainment_bound import most_servable
from policies.placement.evolution import evolve
from policies.placement.exhaustive import exhaustive, placements
from policies.placement.local_search import SearchBudget, at_once, local_search
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.random_search import random_search
from policies.placement.split_by_size import _divisions, size_classes, split_by_size
from policies.placement.types import Cluster, GpuKind, Model, Placement, Pool
from tests.unit.policies_placement.cases import LARGE, cluster, groups, large, requests

TWO_OF_FOUR = groups((4, 1, [1, 2]), (4, 1, [2, 3]))
ALL_IN_ONE = groups((4, 2, [0, 1, 2, 3]))
#: Requests by model: the 70B model is asked least, or most.
LEAST_70B = (150, 200, 200, 200)
MOST_70B = (260, 200, 200, 200)


@pytest.mark.parametrize(
    ("counts", "gap_s", "slo_scale", "expected"),
    [
        (LEAST_70B, 0.1, 5.0, TWO_OF_FOUR),
        (LEAST_70B, 0.1, 2.5, TWO_OF_FOUR),
        (LEAST_70B, 0.2, 5.0, ALL_IN_ONE),
        (LEAST_70B, 0.4, 7.5, ALL_IN_ONE),
        # the greedy places the most unserved model first, though the published placement would be better
        (MOST_70B, 0.1, 5.0, groups((4, 1, [0, 2]), (4, 1, [2, 3]))),
    ],
)
def test_alpaserve(counts: tuple[int, ...], gap_s: float, slo_scale: float, expected: Placement) -> None:
    plan = alpaserve(cluster(), LARGE, large(counts, gap_s, slo_scale))
    assert plan.placement == expected


def test_a_beam_finds_what_the_greedy_misses() -> None:
    evaluate = large(MOST_70B, 0.1)
    assert alpaserve(cluster(), LARGE, evaluate, beam=3).placement == TWO_OF_FOUR


def test_alpaserve_star_runs_every_model_in_every_group() -> None:
    for gap_s in (0.1, 0.4):
        assert alpaserve_star(cluster(), LARGE, large(LEAST_70B, gap_s)).placement == ALL_IN_ONE
    assert alpaserve_star(cluster(8, GpuKind("a", 39.8)), LARGE, large(LEAST_70B, 0.4)) is None


@pytest.mark.parametrize("gap_s", [0.1, 0.15, 0.2, 0.4])
@pytest.mark.parametrize("counts", [LEAST_70B, MOST_70B])
def test_headway_finds_the_best_of_all_placements(counts: tuple[int, ...], gap_s: float) -> None:
    evaluate = large(counts, gap_s)
    plan = local_search(cluster(), LARGE, evaluate, Random(0))
    assert plan.rank == exhaustive(cluster(), LARGE, evaluate).rank
    assert plan.attainment >= alpaserve(cluster(), LARGE, evaluate).attainment


def unlike_models(seed: int) -> tuple[Cluster, list[Model], Evaluator]:
    """Two kinds of GPU, six models of unlike size and demand."""
    random = Random(seed)
    models = [Model(str(number), random.choice([8.0, 14.0, 26.0, 60.0])) for number in range(6)]
    pools = (Pool(GpuKind("a", 40.0), 4), Pool(GpuKind("b", 20.0, (8, 9)), 2))
    speed = {"a": 1.2e12, "b": 0.25e12}
    counts = [random.randint(10, 50) for _ in models]
    arrivals = requests(counts, 0.25, [0.15 * model.gb for model in models], seed)
    return (
        Cluster(pools),
        models,
        Evaluator(
            arrivals,
            lambda model, shape: 20 * models[model].gb * 1e9 / shape.gpus / speed[shape.kind.name],
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_headway_is_never_worse_than_alpaserve_and_random_search(seed: int) -> None:
    cluster, models, evaluate = unlike_models(seed)
    plan = local_search(cluster, models, evaluate, Random(seed), budget=SearchBudget(divisions=100))
    looked_at = evaluate.evaluations
    assert Fit(models).valid(plan.placement)
    assert plan == evaluate(plan.placement)
    other = Evaluator(evaluate.arrivals, evaluate.stage_s)
    assert plan.rank >= alpaserve(cluster, models, other).rank
    assert plan.rank >= random_search(cluster, models, other, Random(1), looked_at).rank
    assert sum(plan.good) <= most_servable(cluster, models, evaluate.arrivals.counts)


def test_the_same_seed_gives_the_same_plan() -> None:
    plans = []
    for _ in range(2):
        cluster, models, evaluate = unlike_models(0)
        plans.append(local_search(cluster, models, evaluate, Random(7)))
    assert plans[0] == plans[1]


def test_the_search_stays_within_its_effort() -> None:
    cluster, models, evaluate = unlike_models(1)
    local_search(cluster, models, evaluate, Random(1), budget=SearchBudget(evaluations=40))
    assert evaluate.evaluations < 100  # the start that passes half of it is finished


def test_exhaustive_search_sees_each_placement_once_and_gives_up_where_there_are_too_many() -> None:
    fit = Fit(LARGE)
    every = placements(cluster(4), fit, 10**6)
    # groups of equal shape and content may come in any order
    assert len(set(every)) == len(every)
    assert all(fit.valid(each) for each in every)
    assert placements(cluster(4), fit, len(every)) == every
    assert placements(cluster(4), fit, len(every) - 1) is None


def test_evolution_is_never_worse_than_its_start() -> None:
    evaluate = large(MOST_70B, 0.1)
    start = alpaserve(cluster(), LARGE, evaluate)
    found = evolve(start, Fit(LARGE), evaluate, Random(0), steps=8, population=40)
    assert found.attainment >= start.attainment
    assert Fit(LARGE).valid(found.placement)


def test_split_by_size() -> None:
    evaluate = large(LEAST_70B, 0.4)
    assert size_classes([1.0, 1.3, 5.0, 0.9, 4.0]) == [[0, 1, 3], [2, 4]]
    (pool,) = cluster().pools
    plan = split_by_size(pool, LARGE, evaluate)
    assert all(len({LARGE[model].name for model in group.models}) <= 1 for group in plan.placement)
    alike = [Model("a", 10.0), Model("b", 11.0)]
    found = split_by_size(pool, alike, Evaluator(requests([5, 5], 1.0, 9.0), lambda model, _: 1 + model / 9))
    assert found is None


def test_many_gpus_are_split_in_parts_of_several() -> None:
    for gpus, classes, unit, found in ((8, 3, 1, 21), (129, 6, 4, 100), (28, 15, 1, 0)):
        ways = _divisions(gpus, [[each] for each in range(classes)], [1.0] * classes, [1] * classes)
        assert len(ways) == found
        assert all(sum(parts) == gpus and min(parts) >= unit for parts in ways)


@pytest.mark.parametrize(
    ("gbs", "counts", "gpus", "bound"),
    [
        ([10.0, 10.0, 10.0], [5, 4, 3], 1, 12),  # 40 GB hold them all
        ([30.0, 20.0, 20.0], [5, 4, 3], 1, 7),  # the two small ones
        ([30.0, 20.0, 20.0], [9, 4, 3], 1, 9),
        ([90.0], [9], 2, 0),
    ],
)
def test_the_bound(gbs: list[float], counts: list[int], gpus: int, bound: int) -> None:
    models = [Model(str(gb), gb) for gb in gbs]
    assert most_servable(cluster(gpus), models, counts) == bound


def test_score() -> None:
    outcome = Outcome(groups((1, 1, [0, 1, 2])), requests=4, good=(2, 1), mean_latency_s=2.0, sent=(4,))
    assert score(outcome) == pytest.approx(0.75 - 2e-4 + 3e-6)
    assert outcome.rank == (3, -2.0, 3)


def test_large_clusters_are_filled_with_fewer_simulations() -> None:
    whole = groups(*[(1, 1, [])] * 64)
    single, several = large([0, 0, 900, 0], 0.002), large([0, 0, 900, 0], 0.002)
    fit = Fit(LARGE)
    full = greedy(whole, fit, single)
    assert greedy(whole, fit, several, at_once(cluster(256))) == full
    assert several.evaluations == single.evaluations // 8 + 1 == 9
