"""Ways to divide a cluster."""

from __future__ import annotations

from random import Random

import pytest

from policies.placement.candidates import equal_groups, mixed_groups, some_equal_groups
from policies.placement.changes import group_changes, replica_changes
from policies.placement.memory import Fit
from policies.placement.types import Cluster, GpuKind, Placement, Pool
from tests.unit.policies_placement.cases import A100, LARGE, cluster, groups

SHAPES_OF_8 = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4), (1, 8)]


def told(placement: Placement) -> list[tuple[int, int]]:
    return [(group.shape.tensor, group.shape.pipeline) for group in placement]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, [[(1, 1)]]),
        (2, [[(1, 1)] * 2, [(2, 1)], [(1, 2)]]),
        # what is left over is a pipeline of its own
        (3, [[(1, 1)] * 3, [(2, 1), (1, 1)], [(1, 2), (1, 1)]]),
        (8, [[(tensor, pipeline)] * (8 // tensor // pipeline) for tensor, pipeline in SHAPES_OF_8]),
    ],
)
def test_equal_groups(gpus: int, expected: list[list[tuple[int, int]]]) -> None:
    assert [told(each) for each in equal_groups(cluster(gpus))] == expected


def test_a_group_lies_in_one_node_or_takes_whole_ones() -> None:
    sizes = {
        group.shape.gpus for each in equal_groups(Cluster((Pool(A100, 12, node_gpus=6),))) for group in each
    }
    assert sizes == {1, 2, 4}


@pytest.mark.parametrize("gpus", [1, 2, 3, 6, 8])
def test_mixed_groups_are_every_division_once(gpus: int) -> None:
    found = [tuple(sorted(told(each))) for each in mixed_groups(cluster(gpus), 100)]
    assert len(set(found)) == len(found)
    assert mixed_groups(cluster(gpus), len(found) - 1) is None
    assert all(sum(tensor * pipeline for tensor, pipeline in each) == gpus for each in found)
    assert {tuple(sorted(told(each))) for each in equal_groups(cluster(gpus))} <= set(found)


def test_pools_are_combined() -> None:
    both = Cluster((Pool(A100, 2), Pool(GpuKind("l4", 20.0, (8, 9)), 2)))
    assert len(equal_groups(both)) == 9
    assert len(mixed_groups(both, 9)) == 9
    assert mixed_groups(both, 8) is None
    assert some_equal_groups(both, 9, Random(0)) == equal_groups(both)
    drawn = some_equal_groups(both, 4, Random(0))
    assert len(drawn) == 4
    assert set(drawn) <= set(equal_groups(both))


@pytest.mark.parametrize(
    "contents",
    [
        [(1, 1, [2])] * 4,
        [(1, 1, [2])] * 3 + [(1, 1, [])] * 2 + [(2, 1, [2])],
        [(4, 1, [1, 2]), (2, 2, [1]), (4, 1, [1, 2]), (4, 1, [2, 3])],
    ],
)
def test_equal_groups_have_the_same_changes(contents: list[tuple[int, int, list[int]]]) -> None:
    """A change of any group, or pair of groups, is also one of the first equal group or pair."""
    fit, wanted = Fit(LARGE), [1.0] * len(LARGE)
    placement = groups(*contents)

    def changed(placement: Placement) -> set[Placement]:
        found = (*replica_changes(placement, fit), *group_changes(placement, fit, wanted))
        return {each.sorted() for each in found}

    for turn in range(len(contents)):
        assert changed(groups(*contents[turn:], *contents[:turn])) == changed(placement)
