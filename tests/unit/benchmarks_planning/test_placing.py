"""Groups on nodes: each GPU is taken once, and a group stays in a node or takes whole ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.engine import profiles
from backends.engine.hardware import HARDWARE
from backends.engine.unlike_stages import EngineStage
from benchmarks.planning.files import ClusterConfig, ModelsConfig
from benchmarks.planning.fleet import fleet_data
from benchmarks.planning.placing import place, placed
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.unlike import UnlikeGroup
from policies.placement.types import Group, Placement, Shape
from tests.unit.benchmarks_planning.made import problem


@pytest.mark.parametrize(
    ("gpus", "node_gpus", "sizes", "firsts"),
    [
        (8, 4, [4, 4], [0, 4]),
        (8, 4, [1, 4, 2], [6, 0, 4]),
        (6, 4, [2, 2, 2], [0, 2, 4]),
        (16, 8, [2, 16 - 8, 4], [12, 0, 8]),
        (12, 4, [2, 8], [8, 0]),  # a pipeline over two nodes
        (10, 4, [1, 1, 8], [8, 9, 0]),
        (4, 4, [], []),
    ],
)
def test_large_blocks_come_first(gpus: int, node_gpus: int, sizes: list[int], firsts: list[int]) -> None:
    found = place(gpus, node_gpus, sizes)
    assert [each.start for each in found] == firsts
    assert [len(each) for each in found] == sizes


@pytest.mark.parametrize("gpus", [1, 2, 7, 8, 13, 24])
@pytest.mark.parametrize("node_gpus", [1, 2, 4, 8])
def test_powers_of_two_always_fit_and_stay_in_a_node(gpus: int, node_gpus: int) -> None:
    left, sizes = gpus, []
    while left:
        size = min(node_gpus, 1 << (len(sizes) * 7 + gpus) % 4, 1 << (left.bit_length() - 1))
        sizes.append(size)
        left -= size
    found = place(gpus, node_gpus, sizes)
    assert sorted(gpu for each in found for gpu in each) == list(range(gpus))
    assert all(each[0] // node_gpus == each[-1] // node_gpus for each in found)


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room for 4 GPUs in nodes of 2"):
        place(3, 2, [4])


def test_two_groups_of_unlike_gpus_take_gpus_of_their_own() -> None:
    a100, l4 = HARDWARE["a100-80g"], HARDWARE["l4"]
    unlike = (
        UnlikeGroup("llama-3.1-70b", (EngineStage(a100, 1, 50), EngineStage(l4, 1, 30)), (0, 1)),
        UnlikeGroup("qwen2.5-72b", (EngineStage(a100, 1, 40), EngineStage(l4, 4, 40)), (0, 1)),
    )
    both = replace(problem("2xa100-80g 8xl4", "llama-3.1-70b qwen2.5-72b"), unlike=unlike)
    groups = [Group(Shape(both.kind_of(each)), (at,)) for at, each in enumerate(both.unlike)]
    blocks = [block for _, blocks in placed(both, Placement(tuple(groups))) for block in blocks]
    gpus = [(pool, gpu) for pool, own in blocks for gpu in own]
    assert sorted(gpus) == [(0, 0), (0, 1), *((1, gpu) for gpu in range(5))]
    assert (1, range(4)) in blocks  # the stage of four GPUs has a node for itself


def test_equal_groups_of_unlike_gpus_take_those_of_their_own_model() -> None:
    stages = EngineStage(HARDWARE["a100-80g"], 1, 40), EngineStage(HARDWARE["l4"], 4, 40)
    unlike = (UnlikeGroup("llama-3.1-70b", stages, (0, 1)), UnlikeGroup("qwen2.5-72b", stages, (2, 1)))
    cluster = problem("1xa100-80g 8xl4", "llama-3.1-70b").cluster_config.pools
    pools = (*cluster, cluster[0].model_copy(update={"node_gpus": 1}))
    both = problem("1xa100-80g", "llama-3.1-70b qwen2.5-72b")
    both = replace(both, cluster_config=ClusterConfig(pools=pools), unlike=unlike)
    shape = Shape(both.kind_of(unlike[0]))
    blocks = dict(placed(both, Placement((Group(shape, (1,)), Group(shape, (0,))))))
    assert blocks[Group(shape, (0,))] == [(0, range(1)), (1, range(4))]
    assert blocks[Group(shape, (1,))] == [(2, range(1)), (1, range(4, 8))]


def test_pools_of_the_same_gpu_are_told_apart() -> None:
    cluster = {
        "pools": [
            {"gpu": "l4", "gpus": 2, "node_gpus": 2, "usd_per_hour": 0.7},
            {"gpu": "l4", "gpus": 4, "node_gpus": 4, "usd_per_hour": 0.5},
        ]
    }
    models = ModelsConfig.model_validate({"models": [{"name": "llama-3.2-1b"}]}).models
    found = PlanningProblem(ClusterConfig.model_validate(cluster), models, {})
    first, second = (pool.kind for pool in found.cluster.pools)
    groups = (Group(Shape(second, 2), (0,)), Group(Shape(first, 1), (0,)), Group(Shape(second, 1), (0,)))
    blocks = [blocks for _, blocks in placed(found, Placement(groups))]
    assert blocks == [[(0, range(1))], [(1, range(2))], [(1, range(2, 3))]]


def test_the_fleet_file_promises_no_longer_context_than_a_group_holds() -> None:
    found = problem("1xl4", "llama-3.2-1b")
    for context_tokens, cut in ((None, False), (8192, False), (10**6, True)):
        config = found.model_configs[0].model_copy(update={"context_tokens": context_tokens})
        own = replace(found, model_configs=(config,))
        placement = Placement((Group(Shape(own.cluster.pools[0].kind), (0,)),))
        (instance,) = fleet_data(own, placement, {})["instances"]
        held = profiles.profile("llama-3.2-1b@l4").kv_capacity_tokens
        served = instance["serves"]["llama-3.2-1b"].get("context_tokens")
        assert served == (held - held % 16 if cut else None)
