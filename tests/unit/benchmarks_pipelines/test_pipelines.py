"""Requests through small pipelines, computed by hand; Python and compiled code alike; and Helix's tables where they are."""

import csv
import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from benchmarks.pipelines import engine as python_engine
from benchmarks.pipelines import schedulers as python_schedulers
from benchmarks.pipelines.compiled import WHY_NOT_NATIVE
from benchmarks.pipelines.planning import Found, Problem, baselines, best_placement, places
from benchmarks.pipelines.published import Published
from benchmarks.pipelines.simulate import SCHEDULERS, PlacedModel, arrivals, loaded_s
from benchmarks.reproduce.helix import rows_of
from policies.placement.helix_milp import HelixProgram
from policies.placement.layer_baselines import NodeRates, petals, separate, swarm
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
)

#: A layer takes 1 ms for 10 tokens of prompts and 1 ms for any decodes; a lone decode takes twice that.
PROMPT, DECODE = LayerTime((0, 4000), (0.0, 0.4)), LayerTime((0, 1, 100), (0.0, 0.001, 0.001))
MODEL = LayeredModel("small", 4, 2, 1000, 1e9)
LIMITS = LayerLimits(100_000, 1, 2048, 100, 100_000)
OUTER, INNER, LATENCY = 1e9, 1e9, 0.001


def machine(limits: LayerLimits = LIMITS) -> MachineKind:
    return MachineKind("m", 1e9, 1e9, PROMPT, DECODE, (limits,) * 4)


def chain(*sizes: int, limits: LayerLimits = LIMITS) -> PlacedModel:
    ranges, start = {}, 0
    for node, size in enumerate(sizes):
        ranges[node] = range(start, start + size)
        start += size
    ends = [SOURCE, *ranges, SINK]
    links = dict.fromkeys(itertools.pairwise(ends), NodeLink(INNER, LATENCY))
    cluster = MachineCluster(dict.fromkeys(ranges, machine(limits)), links)
    return PlacedModel(LayerPlacement(ranges, tuple(links)), cluster, MODEL)


#: Through `diamond`.
FLOWS = [40.0, 30.0, 10.0, 30.0, 10.0, 40.0]


def diamond() -> PlacedModel:
    """Two nodes side by side between a first and a last one."""
    ranges = {0: range(0, 1), 1: range(1, 3), 2: range(1, 3), 3: range(3, 4)}
    pairs = [(SOURCE, 0), (0, 1), (0, 2), (1, 3), (2, 3), (3, SINK)]
    cluster = MachineCluster(dict.fromkeys(ranges, machine()), dict.fromkeys(pairs, NodeLink(1e6, LATENCY)))
    return PlacedModel(LayerPlacement(ranges, tuple(pairs)), cluster, MODEL)


def served(
    placed: PlacedModel, scheduler: python_engine.Scheduler, *requests: tuple[float, int, int]
) -> python_engine.Engine:
    """An engine that has worked on requests of (when, tokens of the prompt, tokens of the answer)."""
    engine = placed.engine(scheduler, (0.0, 1e9), module=python_engine)
    for request in requests:
        engine.submit(*request)
    engine.run(1e9)
    return engine


def copied_s(tokens: int) -> float:
    return tokens * 1000 / 4e9 + tokens * 1000 / 5e9


def sent_s(tokens: int, token_bytes: int) -> float:
    return tokens * token_bytes / INNER + LATENCY


@pytest.mark.parametrize("tokens", [10, 500])
def test_prompt_and_decode_latency_by_hand(tokens: int) -> None:
    engine = served(chain(1, 3), python_schedulers.Swarm(), (1.0, tokens, 2))
    links_s = 2 * sent_s(tokens, 2) + sent_s(tokens, 1002)
    prompt_s = links_s + 4 * PROMPT.at(tokens) + 2 * copied_s(tokens)
    decode_s = 2 * sent_s(1, 2) + sent_s(1, 1002) + 4 * 0.002 + 2 * copied_s(1)
    assert list(engine.prompt_latency_s) == pytest.approx([prompt_s])
    assert list(engine.decode_latency_s) == pytest.approx([decode_s] * 2)
    assert engine.finished == 1
    assert all(node.kv_used == 0 for node in engine.nodes)
    assert engine.stays[2] == engine.stays[3] == 1
    assert engine.stay_s[2] == pytest.approx(PROMPT.at(tokens) + copied_s(tokens))


def test_a_batch_takes_only_one_prompt_where_that_is_the_limit() -> None:
    engine = served(chain(4), python_schedulers.Swarm(), *[(1.0, 100, 1)] * 2)
    first, second = engine.prompt_latency_s
    assert second - first == pytest.approx(4 * PROMPT.at(100) + copied_s(100), abs=1e-3)


def test_a_node_that_would_hold_too_much_says_so() -> None:
    placed = chain(4, limits=LayerLimits(399, 1, 2048, 100, 100_000))
    with pytest.raises(python_engine.KvCacheFull, match="node 2 holds 400 of 399"):
        served(placed, python_schedulers.Swarm(), (1.0, 100, 1))


def test_max_flow_refuses_what_would_fill_the_cache() -> None:
    room = LayerLimits(4 * 1000, 1, 2048, 100, 100_000)
    scheduler = python_schedulers.MaxFlow([100.0, 100.0], 0.85, 1.0)
    # 740 tokens are expected of each, 850 are allowed
    engine = served(chain(4, limits=room), scheduler, *[(1.0, 500, 10)] * 2)
    assert (engine.refused, engine.finished) == (1, 1)


def test_max_flow_divides_prompts_by_flow() -> None:
    scheduler = python_schedulers.MaxFlow(FLOWS, 0.85, 1.0)
    engine = served(diamond(), scheduler, *((1.0 + number, 10, 1) for number in range(8)))
    assert engine.stays[3] == 6
    assert engine.stays[4] == 2


def test_swarm_prefers_the_node_that_answers_sooner() -> None:
    engine = diamond().engine(python_schedulers.Swarm(), (0.0, 1e9), module=python_engine)
    slow = engine.nodes[1]
    slow.prompt_s = [100 * second for second in slow.prompt_s]
    for number in range(40):
        engine.submit(1.0 + number, 10, 1)
    engine.run(1e9)
    assert engine.stays[3] < engine.stays[4] / 3


@pytest.mark.parametrize("name", ["RandomChoice", "ShortestQueue"])
def test_random_schedulers_use_both_branches_and_lose_nothing(name: str) -> None:
    scheduler = getattr(python_schedulers, name)(Random(1))
    engine = served(diamond(), scheduler, *((1.0 + number / 100, 10, 2) for number in range(40)))
    assert engine.finished == 40
    assert min(engine.stays[3], engine.stays[4]) > 5


def test_a_closed_loop_keeps_its_requests() -> None:
    placed = chain(2, 2)
    outcome = placed.offline(SCHEDULERS["swarm"], [(10, 5)], 3, seconds=30.0)
    assert outcome.finished > 100
    assert outcome.decode_tokens_per_s > 0
    assert loaded_s(placed.placement, placed.cluster, MODEL) == 3


def test_arrivals_follow_the_trace_and_the_load() -> None:
    lengths = [(90, 10)]
    drawn = arrivals([1, 3], lengths, 200.0, 7.0, Random(4))
    assert drawn == arrivals([1, 3], lengths, 200.0, 7.0, Random(4))
    assert len(drawn) == pytest.approx(1800 * 2, rel=0.1)
    assert [moment for moment, _, _ in drawn] == sorted(moment for moment, _, _ in drawn)
    assert drawn[0][0] >= 7.0
    assert {(prompt, answer) for _, prompt, answer in drawn} == {(90, 10)}


def _record(
    engine: ModuleType, schedulers: ModuleType, scheduler: str
) -> tuple[list[float], list[float], int]:
    placed = diamond()
    made = {
        "swarm": schedulers.Swarm,
        "random": lambda: schedulers.RandomChoice(Random(2)),
        "shortest": lambda: schedulers.ShortestQueue(Random(2)),
        "max_flow": lambda: schedulers.MaxFlow(FLOWS, 0.85, 1.0),
    }[scheduler]()
    run = placed.engine(made, (0.0, 1e9), module=engine)
    lengths = Random(3)
    for number in range(60):
        run.submit(1.0 + number / 20, lengths.randint(4, 300), lengths.randint(4, 30))
    run.run(1e9)
    return list(run.prompt_latency_s), list(run.decode_latency_s), run.events


@pytest.mark.skipif(WHY_NOT_NATIVE is not None, reason=f"compiled code is not used: {WHY_NOT_NATIVE}")
@pytest.mark.parametrize("scheduler", ["swarm", "random", "shortest", "max_flow"])
def test_compiled_code_does_the_same(scheduler: str) -> None:
    from benchmarks.pipelines.native import engine, schedulers

    assert _record(engine, schedulers, scheduler) == _record(python_engine, python_schedulers, scheduler)


def wired(nodes: int, near: float) -> MachineCluster:
    """Nodes of one kind, of which the first two are in one place and the others in another."""
    links = {
        (a, b): NodeLink(near if (a < 2) == (b < 2) else 1e6, LATENCY)
        for a in range(nodes)
        for b in range(a + 1, nodes)
    }
    links |= {(SOURCE, node): NodeLink(OUTER, LATENCY) for node in range(nodes)}
    links |= {(node, SINK): NodeLink(OUTER, LATENCY) for node in range(nodes)}
    slow = LayerTime((0, 4000), (0.0, 4.0)), LayerTime((0, 1, 100), (0.0, 0.02, 0.04))
    limits = (LayerLimits(20_000, 1, 2048, 100, 100_000),) * 4
    return MachineCluster(dict.fromkeys(range(nodes), MachineKind("m", 1e9, 1e9, *slow, limits)), links)


def test_places_are_what_fast_wires_join() -> None:
    assert places(wired(5, 1e9)) == [[0, 1], [2, 3, 4]]
    assert places(wired(5, 1e6)) == [[0, 1, 2, 3, 4]]


def found(problem: Problem, full_s: float = 5.0) -> Found:
    with ThreadPoolExecutor(1) as executor:
        return best_placement(problem, 0.0, executor, 1, full_s=full_s)


def problem_of(cluster: MachineCluster, layers: int = 4) -> Problem:
    model = LayeredModel("small", layers, 2, 1000, 1e9)
    return Problem(cluster, model, lambda _, held: 100.0 / held, [(10, 50)])


def test_a_placement_of_all_layers_is_found_without_time_to_search() -> None:
    best = found(problem_of(wired(4, 1e9)))
    assert best.tokens_per_s > 0
    assert best.simulations > 0
    held = best.candidate.placement.ranges.values()
    assert {layer for part in held for layer in part} == {0, 1, 2, 3}


def test_one_machine_is_enough_where_it_holds_the_model() -> None:
    assert found(problem_of(wired(1, 1e9))).candidate.placement.ranges == {0: range(0, 4)}


def apart() -> MachineCluster:
    """Two machines without links to each other."""
    whole = wired(2, 1e9)
    return replace(whole, links={ends: link for ends, link in whole.links.items() if min(ends) < 0})


def test_machines_without_links_to_each_other_serve_apart() -> None:
    assert set(found(problem_of(apart())).candidate.placement.ranges.values()) == {range(0, 4)}


def test_a_chain_takes_requests_in_proportion_to_what_it_gives() -> None:
    fast = apart().machines[0]
    slow = replace(
        fast,
        name="slow",
        prompt=LayerTime((0, 4000), (0.0, 12.0)),
        decode=LayerTime((0, 1, 100), (0.0, 0.06, 0.12)),
    )
    candidate = found(problem_of(replace(apart(), machines={0: fast, 1: slow})), 60.0).candidate
    assert tuple(candidate.flow) == candidate.placement.hops
    into = {
        receiver: tokens_per_s
        for (sender, receiver), tokens_per_s in candidate.flow.items()
        if sender == SOURCE
    }
    assert set(into) == {0, 1}
    assert 2.0 < into[0] / into[1] < 4.0


def test_a_model_that_needs_links_that_are_missing_has_no_placement() -> None:
    with pytest.raises(ValueError, match="no placement can run"):
        found(problem_of(apart(), 8))


def test_a_model_that_is_too_large_has_no_placement() -> None:
    with pytest.raises(ValueError, match="cannot hold the model: 16 of 17 layers at most"):
        found(problem_of(wired(4, 1e9), 17))


def random_problem(random: Random) -> Problem:
    """Machines of two or three kinds in one or two places."""
    kinds = []
    for name in ("a", "b", "c")[: random.randint(2, 3)]:
        layer_s, most = random.choice((0.005, 0.01, 0.03)), random.randint(2, 6)
        prompt = LayerTime((0, 4000), (0.0, 400 * layer_s))
        decode = LayerTime((0, 1, 100), (0.0, layer_s, random.choice((1, 3)) * layer_s))
        room = random.choice((40_000, 100_000))
        limits = tuple(LayerLimits(room // held * held, 1, 2048, 100, 100_000) for held in range(1, most + 1))
        kinds.append(MachineKind(name, 1e9, 1e9, prompt, decode, limits))
    nodes = range(random.randint(4, 7))
    machines = {node: random.choice(kinds) for node in nodes}
    place = {node: random.randint(0, 1) for node in nodes}
    far = random.choice((1e9, 2e7))
    links = {
        (a, b): NodeLink(1e9 if place[a] == place[b] else far, LATENCY) for a in nodes for b in nodes if a < b
    }
    links |= {ends: NodeLink(OUTER, LATENCY) for node in nodes for ends in ((SOURCE, node), (node, SINK))}
    layers = min(8, sum(machine.max_layers for machine in machines.values()) - 2)
    model = LayeredModel("small", layers, 2, 1000, 1e9)

    def throughput(name: str, held: int) -> float:
        machine = next(kind for kind in kinds if kind.name == name)
        return 1 / (held * machine.decode.at(10))

    return Problem(MachineCluster(machines, links), model, throughput, [(40, 20), (120, 60)])


@pytest.mark.skipif(WHY_NOT_NATIVE is not None, reason="takes long without compiled code")
@pytest.mark.parametrize("seed", range(4))
def test_on_random_clusters_ours_is_never_below_petals_swarm_and_separate(seed: int) -> None:
    problem = random_problem(Random(seed))
    best = found(problem)
    for other in baselines(problem):
        mean = sum(problem.score(other, 5.0, number) for number in (1, 2, 3)) / 3
        assert best.tokens_per_s >= mean * (1 - 1e-9), other.name


DATA = os.environ.get("HEADWAY_DATA")
with_data = pytest.mark.skipif(DATA is None, reason="HEADWAY_DATA is not set")


@pytest.fixture(scope="module")
def helix() -> Published:
    return Published(Path(DATA or ".") / "helix")


@with_data
def test_every_published_node_throughput_is_computed_to_the_last_digit(helix: Published) -> None:
    mixes = json.loads((helix.folder / "models.json").read_text())
    with (helix.folder / "typical_throughput.csv").open() as file:
        for row in csv.DictReader(file):
            counts = mixes[row["model"]][row["cluster_mix"]]["machines"]
            rate = helix.models[row["model"]].throughput(counts)
            assert rate(row["machine"], int(row["num_layers"])) == float(row["tokens_per_s"])


def _rates(helix: Published, cluster: MachineCluster, model: str) -> NodeRates:
    found = helix.models[model]
    return Problem(cluster, found.model, found.throughput(cluster.counts()), helix.lengths).rates()


@with_data
@pytest.mark.parametrize(
    ("folder", "model"),
    [
        ("single_cluster", "llama30b"),
        ("single_cluster", "llama70b"),
        ("distributed_clusters", "llama30b"),
        ("distributed_clusters", "llama70b"),
        ("high_heterogeneity", "llama70b"),
    ],
)
def test_the_shipped_petals_and_swarm_placements_are_found(helix: Published, folder: str, model: str) -> None:
    where = f"{folder}/layout_{model}"
    names = {"single_cluster": "single24", "distributed_clusters": "geo24", "high_heterogeneity": "het42"}
    rates = _rates(helix, helix.cluster(names[folder], model), model)
    layers = helix.models[model].model.layers
    assert petals(rates, layers, Random(0)) == helix.ranges(f"{where}/petals/petals_sol.ini")
    stages = 10 if model == "llama30b" else 20
    assert swarm(rates, layers, stages) == helix.ranges(f"{where}/swarm/swarm_sol.ini")


@with_data
@pytest.mark.parametrize(("kind", "nodes"), [("a100", 4), ("l4", 8), ("t4", 12)])
@pytest.mark.parametrize(("model", "layers"), [("llama30b", 60), ("llama70b", 80)])
def test_the_shipped_separate_pipelines_are_found(
    helix: Published, kind: str, nodes: int, model: str, layers: int
) -> None:
    shipped = helix.ranges(f"single_cluster/layout_{model}/separate/{kind}_solution_file.ini")
    assert separate(range(nodes), layers) == shipped


@with_data
@pytest.mark.parametrize(
    ("cluster", "size"), [("geo24", (1848, 1376, 13960)), ("het42", (5502, 4004, 49546))]
)
def test_helixs_program_has_the_published_size(
    helix: Published, cluster: str, size: tuple[int, int, int]
) -> None:
    machines = helix.cluster(cluster, "llama70b")
    program = HelixProgram(machines, helix.models["llama70b"].model, _rates(helix, machines, "llama70b"))
    assert program.size == size


@with_data
@pytest.mark.skipif(WHY_NOT_NATIVE is not None, reason="takes a minute without compiled code")
def test_section_6_6_is_reproduced_to_the_last_digit(helix: Published) -> None:
    rows = list(rows_of(helix.folder, ["6.6"], 0, 1, lambda _: None))
    assert [row.ours for row in rows] == [row.published for row in rows] == [98.0, 41.6, 66.6]
