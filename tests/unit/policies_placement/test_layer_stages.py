"""Stages of alike machines: how a plan spreads, what is one step away, and the search."""

from collections.abc import Sequence
from random import Random

import pytest

from policies.placement.layer_stages import Plan, Pool, Share, feasible, ranges, search, spread, starts, steps
from policies.placement.pipeline import LayerRange

POOLS = [Pool((3, 4), 6), Pool((0, 1, 2), 3)]


@pytest.mark.parametrize(("amount", "parts", "each"), [(7, 3, [2, 2, 3]), (4, 4, [1] * 4), (5, 1, [5])])
def test_spread_is_even_the_smaller_first(amount: int, parts: int, each: list[int]) -> None:
    assert spread(amount, parts) == each


def test_a_plan_gives_all_machines_of_a_stage_the_same_layers() -> None:
    assert ranges(POOLS, (Share(2, 7), Share(2, 5))) == {
        0: LayerRange(7, 9),
        1: LayerRange(9, 12),
        2: LayerRange(9, 12),
        3: LayerRange(0, 3),
        4: LayerRange(3, 7),
    }


def test_a_pool_without_layers_is_left_out() -> None:
    assert set(ranges(POOLS, (Share(2, 8), Share(0, 0)))) == {3, 4}


@pytest.mark.parametrize(
    ("share", "possible"),
    [
        (Share(2, 12), True),
        (Share(2, 13), False),
        (Share(3, 6), False),
        (Share(0, 0), True),
        (Share(0, 1), False),
    ],
)
def test_what_a_pool_can_hold(share: Share, possible: bool) -> None:
    assert feasible(POOLS[0], share) is possible


def test_steps_keep_the_layers_and_are_possible() -> None:
    plan = (Share(2, 7), Share(2, 5))
    near = list(steps(POOLS, plan))
    assert plan not in near
    assert all(sum(share.layers for share in step) == 12 for step in near)
    assert all(feasible(pool, share) for step in near for pool, share in zip(POOLS, step, strict=True))
    assert (Share(1, 6), Share(2, 6)) in near


def test_starts_hold_the_model_or_there_are_none() -> None:
    found = starts(POOLS, 12, {0: 12.0, 1: 9.0}, Random(1), 4)
    assert found
    assert all(sum(share.layers for share in plan) == 12 for plan in found)
    assert starts(POOLS, 22, {0: 12.0, 1: 9.0}, Random(1), 4) == []


def test_the_search_finds_the_best_of_a_small_space() -> None:
    wanted = (Share(2, 9), Share(1, 3))

    def scores(plans: Sequence[Plan]) -> list[float]:
        return [
            -sum(
                abs(ours.stages - best.stages) + abs(ours.layers - best.layers)
                for ours, best in zip(plan, wanted, strict=True)
            )
            for plan in plans
        ]

    left = iter(range(30))
    found = search(
        POOLS, [(Share(1, 6), Share(2, 6))], scores, Random(0), 6, lambda: next(left, None) is not None
    )
    assert found[0] == (0, wanted)
