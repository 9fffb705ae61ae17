"""Layers of a model over unlike machines: T(k), the max-flow graph, Petals, Swarm, separate pipelines and Helix's program."""

from random import Random

import pytest

from policies.placement.helix_milp import HelixProgram
from policies.placement.layer_baselines import least_stages, petals, separate, swarm
from policies.placement.max_flow import NoFlowError, max_flow
from policies.placement.node_throughput import NodeThroughput
from policies.placement.pipeline import (
    SINK,
    SOURCE,
    LayeredModel,
    LayerLimits,
    LayerPlacement,
    LayerTime,
    MachineCluster,
    MachineKind,
    NodeLink,
    connect,
)

MODEL = LayeredModel("small", 4, 2, 1000, 1e9)
LINEAR = LayerTime((0, 1000), (0.0, 1.0))


def machine(name: str, max_layers: int = 4) -> MachineKind:
    limits = tuple(LayerLimits(400_000, 1, 2048, 100, 100_000) for _ in range(max_layers))
    return MachineKind(name, 1e9, 1e9, LINEAR, LINEAR, limits)


def cluster(*machines: MachineKind, bandwidth: float = 1e9) -> MachineCluster:
    nodes = range(len(machines))
    pairs = [(a, b) for a in nodes for b in nodes if a < b]
    outer = [(SOURCE, node) for node in nodes] + [(node, SINK) for node in nodes]
    return MachineCluster(
        dict(enumerate(machines)), {pair: NodeLink(bandwidth, 0.001) for pair in pairs + outer}
    )


def test_times_between_measured_sizes_are_on_a_line_and_others_are_refused() -> None:
    times = LayerTime((0, 10, 30), (0.0, 1.0, 2.0))
    assert [times.at(size) for size in (0, 5, 10, 20, 30)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    with pytest.raises(ValueError, match="31 is outside"):
        times.at(31)


@pytest.mark.parametrize(("partial", "hops"), [(False, 5), (True, 7)])
def test_links_go_where_the_next_layer_is_held(partial: bool, hops: int) -> None:
    ranges = {0: range(0, 2), 1: range(2, 4), 2: range(1, 3), 3: range(3, 4)}
    pairs = set(connect(cluster(*[machine("m")] * 4), ranges, 4, partial=partial))
    assert {(SOURCE, 0), (0, 1), (1, SINK), (3, SINK), (2, 3)} <= pairs
    assert ((0, 2) in pairs) is partial
    assert len(pairs) == hops


def test_a_nodes_throughput_follows_its_share_of_the_round_trip() -> None:
    rate = NodeThroughput({"m": machine("m")}, {"m": 1}, {"m": 4}, {"m": 1.0}, 8)
    # 30 % of 400,000 token-layers hold 60 requests of 990 tokens at 2 layers; a quarter of the trip is here
    requests = 0.25 * int(0.3 * 400_000 / 2) / 990
    prompts, prompt_tokens, decode_tokens = requests / 240, round(requests / 240 * 750), round(requests)
    times_s = int(prompt_tokens / prompts) / 1000 + decode_tokens / 1000 / prompts  # scaled up to one prompt
    assert rate("m", 2) == pytest.approx((prompt_tokens + decode_tokens) / prompts / (2 * times_s))


def test_a_full_batch_is_one_mean_request() -> None:
    large = MachineKind("m", 1e9, 1e9, LINEAR, LINEAR, (LayerLimits(10**9, 1, 2048, 9, 9),) * 2)
    rate = NodeThroughput({"m": large}, {"m": 1}, {"m": 2}, {"m": 1.0}, 4)
    assert rate("m", 2) == pytest.approx(990 / (2 * 0.99))


def test_the_flow_is_what_the_narrowest_cut_lets_through() -> None:
    ranges = {0: range(0, 2), 1: range(2, 4), 2: range(2, 4)}
    machines = cluster(*[machine("m")] * 3)
    placement = LayerPlacement(ranges, connect(machines, ranges, 4))
    flow = max_flow(placement, machines, MODEL, lambda _, layers: 40.0)
    assert tuple(flow) == placement.hops
    assert flow[SOURCE, 0] == pytest.approx(40.0)
    assert flow[0, 1] + flow[0, 2] == pytest.approx(40.0)


def test_a_slow_link_bounds_the_flow() -> None:
    machines = cluster(machine("m"), machine("m"), bandwidth=10_020.0)
    hops = ((SOURCE, 0), (0, 1), (1, SINK))
    placement = LayerPlacement({0: range(0, 2), 1: range(2, 4)}, hops)
    assert max_flow(placement, machines, MODEL, lambda *_: 100.0) == pytest.approx(dict.fromkeys(hops, 10.0))


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        ({0: range(0, 2), 1: range(2, 3)}, "no node holds layer 3 .1 of 4"),
        ({0: range(0, 3), 1: range(2, 4)}, "no links lead"),
    ],
)
def test_a_placement_without_flow_is_an_error_that_says_why(ranges: dict[int, range], why: str) -> None:
    machines = cluster(machine("m"), machine("m"))
    placement = LayerPlacement(ranges, connect(machines, ranges, 4))
    with pytest.raises(NoFlowError, match=why):
        max_flow(placement, machines, MODEL, lambda *_: 100.0)


def test_one_machine_that_holds_the_model_has_a_flow() -> None:
    alone = cluster(machine("m"))
    ranges = {0: range(0, 4)}
    placement = LayerPlacement(ranges, connect(alone, ranges, 4))
    assert max_flow(placement, alone, MODEL, lambda *_: 100.0) == {(SOURCE, 0): 100.0, (0, SINK): 100.0}


def test_petals_takes_the_window_that_is_served_least() -> None:
    rates = {0: (4.0, 3.0), 1: (4.0, 3.0), 2: (9.0, 8.0, 7.0)}
    held = petals(rates, 4, Random(3))
    assert all(len(part) == len(rates[node]) for node, part in held.items())
    assert {layer for part in held.values() for layer in part} == {0, 1, 2, 3}
    assert held == petals(rates, 4, Random(3))


def test_swarm_gives_the_fastest_to_the_weakest_stage() -> None:
    rates = {0: (9.0, 1.0), 1: (9.0, 5.0), 2: (9.0, 2.0), 3: (9.0, 3.0)}
    assert least_stages(rates, 4) == 2
    found = swarm(rates, 4, 2)
    assert found == {0: range(0, 2), 1: range(0, 2), 2: range(2, 4), 3: range(2, 4)}


@pytest.mark.parametrize(("layers", "stages", "why"), [(5, 2, "not 2 equal"), (6, 2, "cannot hold")])
def test_swarm_refuses_stages_that_do_not_fit(layers: int, stages: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        swarm({0: (1.0, 1.0), 1: (1.0, 1.0, 1.0)}, layers, stages)


def test_separate_pipelines_have_equal_parts_the_shorter_first() -> None:
    assert separate([5, 3, 4], 5) == {5: range(0, 1), 3: range(1, 3), 4: range(3, 5)}
    with pytest.raises(ValueError, match="3 nodes for 2 layers"):
        separate([0, 1, 2], 2)


def test_helixs_program_finds_the_best_chain() -> None:
    machines = cluster(machine("m", 3), machine("m", 3))
    rates = {0: (30.0, 20.0, 10.0), 1: (30.0, 25.0, 5.0)}
    program = HelixProgram(machines, MODEL, rates)
    found = program.solve(30)
    assert {len(part) for part in found.ranges.values()} == {2}
    assert found.tokens_per_s == pytest.approx(20.0)
    assert found.bound == pytest.approx(20.0)
    assert program.flow_bound == pytest.approx((40.0 + 50.0) / 4)
    assert program.solve(30, at_least=21.0) is None


def test_partial_inference_lets_a_request_enter_in_the_middle() -> None:
    machines = cluster(machine("m", 3), machine("m", 3))
    rates = {0: (1.0, 1.0, 30.0), 1: (1.0, 1.0, 20.0)}
    whole, partial = (HelixProgram(machines, MODEL, rates, partial=p).solve(30) for p in (False, True))
    assert partial is not None
    assert whole.tokens_per_s == pytest.approx(1.0)
    assert partial.tokens_per_s == pytest.approx(20.0)
