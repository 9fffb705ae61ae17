"""Stages of machines: their shares and flows, the steps of a search, and the estimate that it follows."""

from random import Random

import pytest

from policies.placement.layer_stage_estimate import StageEstimate
from policies.placement.layer_stage_moves import anneal, neighbor, starts
from policies.placement.layer_stages import (
    MachinePool,
    Plan,
    Stage,
    described,
    feasible,
    idle,
    placed,
    shares,
)
from policies.placement.pipeline import (
    SINK,
    SOURCE,
    LayeredModel,
    LayerLimits,
    LayerTime,
    MachineCluster,
    MachineKind,
    NodeLink,
)

POOLS = [MachinePool("big", (3, 4), 6), MachinePool("small", (0, 1, 2), 3)]
#: Two chains would need ten more machines, so there is one: 6 layers on one big machine, 3 on the others together, and 3 more.
PLAN: Plan = ((Stage(6, (1, 0)), Stage(3, (1, 1)), Stage(3, (0, 2))),)
MODEL = LayeredModel("small", 12, 2, 1000, 1e9)
LENGTHS = [(100, 50)]


def rate(kind: str, layers: int) -> float:
    return (30.0 if kind == "big" else 10.0) / layers


def kind(name: str, layer_s: float, max_layers: int) -> MachineKind:
    prompt, decode = LayerTime((0, 1000), (0.0, 100 * layer_s)), LayerTime((0, 100), (layer_s, 2 * layer_s))
    limits = tuple(LayerLimits(90_000, 1, 2048, 100, 100_000) for _ in range(max_layers))
    return MachineKind(name, 1e9, 1e9, prompt, decode, limits)


def cluster(*, small_s: float = 0.003, bandwidth: float = 1e9, without: int | None = None) -> MachineCluster:
    big, small = kind("big", 0.001, 6), kind("small", small_s, 3)
    machines = {3: big, 4: big, 0: small, 1: small, 2: small}
    pairs = [(a, b) for a in machines for b in machines if a < b]
    pairs += [(SOURCE, node) for node in machines] + [(node, SINK) for node in machines]
    links = {pair: NodeLink(bandwidth, 0.001) for pair in pairs if without not in pair}
    return MachineCluster(machines, links)


def estimate(machines: MachineCluster) -> StageEstimate:
    return StageEstimate(machines, MODEL, POOLS, rate, LENGTHS)


@pytest.mark.parametrize(
    ("stage", "possible"),
    [
        (Stage(6, (1, 0)), True),
        (Stage(6, (1, 1)), False),
        (Stage(0, (1, 0)), False),
        (Stage(3, (0, 0)), False),
        (Stage(3, (2, -1)), False),
    ],
)
def test_a_stage_has_layers_that_each_of_its_machines_can_hold(stage: Stage, possible: bool) -> None:
    assert feasible(POOLS, stage) is possible


def test_machines_share_a_stage_by_their_throughput() -> None:
    assert shares(POOLS, Stage(3, (1, 2)), rate) == pytest.approx({0: 0.6, 1: 0.2})


def test_a_plan_gives_its_nodes_layers_and_every_hop_its_flow() -> None:
    placement, flow = placed(cluster(), POOLS, PLAN, rate, [8.0])
    assert placement.ranges == {
        3: range(0, 6),
        4: range(6, 9),
        0: range(6, 9),
        1: range(9, 12),
        2: range(9, 12),
    }
    assert tuple(flow) == placement.hops
    assert flow[SOURCE, 3] == 8.0
    assert (flow[3, 4], flow[3, 0]) == pytest.approx((6.0, 2.0))
    assert flow[4, 1] == flow[4, 2] == pytest.approx(3.0)
    assert flow[1, SINK] + flow[2, SINK] == pytest.approx(8.0)


def test_a_plan_over_machines_without_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="no link joins nodes 3 and 0"):
        placed(cluster(without=0), POOLS, PLAN, rate, [8.0])


def test_a_plan_is_described_in_a_line() -> None:
    assert described(POOLS, (*PLAN, (Stage(2, (0, 1)),))) == "6:1big 3:1big+1small 3:2small | 2:1small"
    assert idle(POOLS, (PLAN[0][:2],)) == [0, 2]


def test_steps_keep_the_layers_and_the_machines() -> None:
    random, plan, seen = Random(1), PLAN, set()
    for _ in range(2000):
        following = neighbor(POOLS, plan, random)
        if following is not None:
            plan = following
            seen.add(plan)
            assert all(sum(stage.layers for stage in chain) == 12 for chain in plan)
            assert all(feasible(POOLS, stage) for chain in plan for stage in chain)
            assert min(idle(POOLS, plan)) >= 0
    assert len(seen) > 20


def test_starts_hold_the_model_or_there_are_none() -> None:
    found = starts(POOLS, 12, [12.0, 9.0], Random(1), 6)
    assert found
    assert all(sum(stage.layers for stage in chain) == 12 for plan in found for chain in plan)
    assert all(min(idle(POOLS, plan)) >= 0 for plan in found)
    assert starts(POOLS, 22, [12.0, 9.0], Random(1), 4) == []


def test_pools_that_each_hold_the_model_are_chains_of_their_own_too() -> None:
    found = starts(POOLS, 9, [12.0, 9.0], Random(1), 6)
    assert {len(plan) for plan in found} == {1, 2}


def test_some_chains_to_begin_with_have_one_machine_a_stage() -> None:
    plans = starts(POOLS, 12, [12.0, 9.0], Random(1), 40)
    assert any(all(sum(stage.machines) == 1 for stage in chain) for plan in plans for chain in plan)


def test_annealing_finds_the_best_of_a_small_space() -> None:
    def score(plan: Plan) -> float:
        sizes = [stage.layers for chain in plan for stage in chain]
        return 1 - 0.01 * (max(sizes) - min(sizes))

    best, plan = anneal(POOLS, PLAN, score, 2000, Random(0))
    assert best == 1.0
    assert len({stage.layers for chain in plan for stage in chain}) == 1


def test_the_estimate_falls_with_slower_machines_and_slower_links() -> None:
    whole = estimate(cluster())(PLAN)
    assert whole > 0
    assert estimate(cluster(small_s=0.006))(PLAN) < 0.8 * whole
    assert estimate(cluster(bandwidth=1e5))(PLAN) < 0.5 * whole
    assert estimate(cluster(without=0))(PLAN) == 0.0


def test_the_estimate_obeys_littles_law() -> None:
    """One machine after another: the requests that the caches hold, over the time of an iteration with its part of a prompt."""
    machines = cluster()
    chain = (Stage(6, (1, 0)), Stage(6, (1, 0)))
    found = estimate(machines)((chain,))
    requests = 0.8 * 90_000 / 6 / (100 + 240)
    least_s = 3 * 0.001 + 12 * 0.001 + 12 * 0.01 / 50
    assert 0.1 * requests / least_s < found < requests / least_s


def test_a_stage_of_more_machines_than_a_scheduler_uses_counts_for_nothing() -> None:
    pools = [MachinePool("big", tuple(range(25)), 12)]
    machine = kind("big", 0.001, 12)
    links = {(SOURCE, node): NodeLink(1e9, 0.001) for node in range(25)}
    links |= {(node, SINK): NodeLink(1e9, 0.001) for node in range(25)}
    guess = StageEstimate(
        MachineCluster(dict.fromkeys(range(25), machine), links), MODEL, pools, rate, LENGTHS
    )
    assert guess(((Stage(12, (25,)),),)) == 0.0
    assert guess(((Stage(12, (20,)),),)) > 0.0
