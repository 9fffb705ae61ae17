"""Plans with a group over unlike GPUs, for a model that no group of equal GPUs holds."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import orjson
import pytest

from backends.engine import profiles
from backends.engine.hardware import HARDWARE
from benchmarks.planning.files import ClusterConfig
from benchmarks.planning.fleet import fleet_config, fleet_data
from benchmarks.planning.from_fleet import cluster_of, models_of, present
from benchmarks.planning.placing import placed
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.reasons import reasons
from benchmarks.planning.unlike import split_layers
from benchmarks.simulator import open_fleet
from policies.placement.types import Group, Placement, Shape
from router.config import load
from tests.commands import Headway
from tests.unit.benchmarks_planning.made import plan_files, problem

LARGE = "llama-3.1-70b"


def test_a_model_that_fits_equal_gpus_gets_no_group_of_unlike_ones() -> None:
    assert problem("4xa100-80g 4xl4", LARGE).with_unlike_groups().unlike == ()


def test_of_two_pools_of_a_kind_the_cheaper_one_is_taken() -> None:
    found = problem("1xa100-80g 4xl4", LARGE)
    pools = [pool.model_dump() for pool in found.cluster_config.pools]
    pools.append({**pools[1], "usd_per_hour": 0.5})
    twice = replace(found, cluster_config=ClusterConfig.model_validate({"pools": pools})).with_unlike_groups()
    (group,) = twice.unlike
    assert set(group.pools) == {0, 2}
    assert twice.kind_of(group).usd_per_hour == 3.0
    assert twice.gpus_left == [0, 4, 0]
    ((_, blocks),) = placed(twice, Placement((Group(Shape(twice.kind_of(group)), (0,)),)))
    assert {pool for pool, _ in blocks} == {0, 2}


def test_gpus_without_cost_are_compared_by_the_time_of_a_step() -> None:
    found = problem("1xa100-80g 6xl4", LARGE)
    pools = [{**pool.model_dump(), "usd_per_hour": 0.0} for pool in found.cluster_config.pools]
    free = replace(found, cluster_config=ClusterConfig.model_validate({"pools": pools})).with_unlike_groups()
    (group,) = free.unlike
    assert free.kind_of(group).usd_per_hour == 0.0


def test_a_group_may_span_two_pools_of_a_kind_and_its_fleet_file_is_planned_again() -> None:
    found = problem("4xv100-32g", LARGE)
    pools = [pool.model_dump() for pool in found.cluster_config.pools]
    pools.append({**pools[0], "gpus": 2, "usd_per_hour": 0.5})
    twice = replace(found, cluster_config=ClusterConfig.model_validate({"pools": pools})).with_unlike_groups()
    (group,) = twice.unlike
    assert [group.gpus_of(pool) for pool in (0, 1)] == [4, 2]
    own = fleet_config(fleet_data(twice, Placement((Group(Shape(twice.kind_of(group)), (0,)),)), {}))
    (pool,) = cluster_of(own).pools
    assert pool.gpus == 6
    again = PlanningProblem(cluster_of(own), models_of(own).models, {}).with_unlike_groups()
    assert reasons(again) == []
    assert present(again, own) is not None


@pytest.mark.parametrize("pools", ["1xa100-80g 4xl4", "2xa40 4xl4", "6xv100-32g"])
def test_all_stages_of_a_group_have_one_degree(pools: str) -> None:
    (group,) = problem(pools, LARGE).with_unlike_groups().unlike
    assert len({stage.gpus for stage in group.stages}) == 1


def test_gpus_that_do_not_run_a_format_neither_hold_its_model_nor_join_a_group() -> None:
    found = problem("16xt4 1xa100-80g 6xl4", f"{LARGE}:bf16").with_unlike_groups()
    (group,) = found.unlike
    assert set(group.pools) == {1, 2}
    assert reasons(found) == []


def test_a_model_that_fits_nowhere_gets_none() -> None:
    assert problem("1xt4 1xl4", LARGE).with_unlike_groups().unlike == ()


def test_a_model_that_fits_only_together_gets_a_group_and_the_others_what_is_left() -> None:
    found = problem("1xa100-80g 4xl4 4xt4", f"{LARGE} llama-3.2-1b").with_unlike_groups()
    (group,) = found.unlike
    assert sum(stage.layers for stage in group.stages) == 80
    assert {stage.hardware.name for stage in group.stages} == {"a100-80g", "l4"}
    profile = profiles.profile(f"{LARGE}@{group.name}")
    assert profile.kv_capacity_tokens >= 4096
    left = {pool.kind.name: pool.gpus for pool in found.cluster.pools}
    assert left == {"t4": 4, group.name: 1}
    assert (group.name, 1, 1) in (found.models[0].shapes or ())
    assert (group.name, 1, 1) not in (found.models[1].shapes or ())
    assert found.cluster.pools[-1].kind.usd_per_hour == sum(stage.gpus for stage in group.stages)


def test_the_plan_shows_the_layers_and_its_fleet_file_can_be_served(tmp_path: Path, headway: Headway) -> None:
    pools = "{gpu: a100-80g, gpus: 1, node_gpus: 1}, {gpu: l4, gpus: 4, node_gpus: 4}"
    load_of = ("--rates", f"{LARGE}=0.01", "--slo", "ttft_ms=60000,tpot_ms=2000")
    brief = ("--limit", "20", "--time-s", "0.5", "--jobs", "1", "--out", str(tmp_path / "plan"))
    assert "unlike stages" in headway.out(
        "plan", *plan_files(tmp_path, pools, f"{{name: {LARGE}}}"), *load_of, *brief
    )
    (group,) = orjson.loads((tmp_path / "plan" / "plan.json").read_bytes())["plans"][0]["groups"]
    assert sum(stage["layers"] for stage in group["stages"]) == 80
    for stage in group["stages"]:
        most_gb = profiles.budget_bytes(HARDWARE[stage["gpu"]]) / 1e9
        assert stage["weights_gb_per_gpu"] + stage["kv_cache_gb_per_gpu"] <= most_gb + 0.02
    gpus = [(stage["gpu"], gpu) for stage in group["stages"] for gpu in stage["gpus"]]
    assert len(set(gpus)) == len(gpus) == 5
    config = load(tmp_path / "plan" / "fleet.yaml")
    assert config.instances[0].profile == group["profile"] == f"{LARGE}@{group['gpu']}"
    assert open_fleet(config).names == [config.instances[0].name]


@pytest.mark.parametrize("seed", range(20))
def test_no_split_of_layers_has_a_faster_slowest_stage(seed: int) -> None:
    random = Random(seed)
    layers = random.randint(4, 12)
    stages = []
    for _ in range(random.randint(2, 4)):
        layer, fixed = random.choice((1.0, 1.5, 3.0)), random.choice((0.0, 2.0))
        stages.append([fixed + layer * held for held in range(1, random.randint(2, 7))])
    every = [held for held in product(*(range(1, len(times) + 1) for times in stages)) if sum(held) == layers]
    found = split_layers(layers, stages)
    if not every:
        assert found is None
        return
    assert found in every
    assert slowest(stages, found) == min(slowest(stages, held) for held in every)


def slowest(stages: list[list[float]], split: tuple[int, ...]) -> float:
    return max(times[held - 1] for times, held in zip(stages, split, strict=True))


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        (10, [[1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10]], (6, 4)),
        (9, [[1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10]], (6, 3)),
        (2, [[1.0], [1.0], [1.0]], None),
        (3, [[1.0], [1.0]], None),
        (1, [[1.0, 2.0]], (1,)),
    ],
)
def test_the_slower_stage_holds_fewer_layers(
    layers: int, stages: list[list[float]], split: tuple[int, ...] | None
) -> None:
    assert split_layers(layers, stages) == split
