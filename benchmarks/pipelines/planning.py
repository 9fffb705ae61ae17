"""Headway's own placements of layers: annealing over stages on an estimate, then simulations of the best plans.

The estimate looks at tens of thousands of plans. The best of them are simulated on one seed, then neighbors of the best. The
last few are simulated on two more seeds, and the best mean wins, so no plan wins by the luck of its requests. What Petals,
Swarm and separate pipelines make of the machines competes.

Chains share no machine, so each is simulated by itself, and what a plan gives is the sum of its chains. A request goes to a
chain in proportion to what the chain gave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from statistics import fmean
from time import process_time
from typing import TypeVar

from benchmarks.pipelines import compiled
from benchmarks.pipelines.simulate import FIRST_REQUESTS, OFFLINE_S, PlacedModel, max_flow_scheduler
from benchmarks.workloads.published import grouped
from policies.placement.layer_baselines import NodeRates, least_stages, petals, separate, swarm
from policies.placement.layer_stage_estimate import StageEstimate
from policies.placement.layer_stage_moves import anneal, neighbor, starts
from policies.placement.layer_stages import Chain, MachinePool, Plan, described, placed
from policies.placement.max_flow import Flow, NoFlowError, max_flow
from policies.placement.pipeline import LayeredModel, LayerPlacement, MachineCluster, connect

#: How many plans the estimate looks at first; steps of annealing in each round, from how many of the best plans; and the share of
#: the CPU time after which no round begins.
_STARTS = 240
_ROUNDS, _ANNEALED = ((1000, 24), (5000, 8), (20000, 4)), 0.35
#: The share of the CPU time after which no more annealed plans are simulated, and how many there are at most; how many plans
#: come last, and the seeds: all plans are simulated on the first, the last ones on all.
_SIMULATED, _MOST_PLANS = 0.55, 64
_FINALISTS, _SEEDS = 4, (1, 2, 3)
#: Neighbors that are estimated of each of the best plans, and how many plans have neighbors.
_NEIGHBORS, _BEST = 200, 3
#: Nodes are in one place if their link has at least this share of the fastest link's bandwidth.
_NEAR = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement and the flow that its scheduler follows."""

    name: str
    placement: LayerPlacement
    flow: Flow


@dataclass(frozen=True, slots=True)
class Found:
    """The best placement, its decode tokens per second (a mean over seeds), and what the search took."""

    candidate: Candidate
    tokens_per_s: float
    simulations: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be placed, and the requests that it is to serve."""

    cluster: MachineCluster
    model: LayeredModel
    throughput: Callable[[str, int], float]
    lengths: Sequence[tuple[int, int]]

    def pools(self) -> list[MachinePool]:
        """Machines of one kind in one place, places one after another."""
        return [
            MachinePool(kind, tuple(nodes), self.cluster.machines[nodes[0]].max_layers)
            for place in places(self.cluster)
            for kind, nodes in _by_kind(self.cluster, place).items()
        ]

    def speed(self, pool: MachinePool) -> float:
        """Layers times tokens/s of a pool's machines when they are two thirds full."""
        layers = max(1, round(pool.max_layers * 2 / 3))
        return len(pool.nodes) * layers * self.throughput(pool.kind, layers)

    def rates(self) -> NodeRates:
        """Tokens per second of each node with 1, 2, ... layers, up to what it can hold or its network card passes on."""
        return {
            node: tuple(
                min(
                    self.throughput(machine.name, layers),
                    machine.nic_bytes_per_s / self.model.activation_bytes,
                )
                for layers in range(1, min(machine.max_layers, self.model.layers) + 1)
            )
            for node, machine in self.cluster.machines.items()
        }

    def estimate(self, pools: Sequence[MachinePool]) -> StageEstimate:
        """An estimate of plans over these pools."""
        return StageEstimate(self.cluster, self.model, pools, self.throughput, self.lengths)

    def candidate(self, pools: Sequence[MachinePool], plan: Plan, weights: Sequence[float]) -> Candidate:
        """A plan of stages whose chains have flows in these proportions."""
        placement, flow = placed(self.cluster, pools, plan, self.throughput, weights)
        return Candidate(described(pools, plan), placement, flow)

    def score(self, candidate: Candidate, seconds: float, seed: int) -> float:
        """Decode tokens per second; 0 for a placement that a KV cache cannot hold."""
        model = PlacedModel(candidate.placement, self.cluster, self.model)
        scheduler = max_flow_scheduler(candidate.flow, online=False)
        try:
            return model.offline(scheduler, self.lengths, FIRST_REQUESTS, seed, seconds).decode_tokens_per_s
        except compiled.engine.KvCacheFull:
            return 0.0


def baselines(problem: Problem) -> list[Candidate]:
    """What Petals, Swarm and separate pipelines make of the machines, with the maximum flow; without those that have none."""
    rates, layers = problem.rates(), problem.model.layers
    held = {"Petals": petals(rates, layers, Random(0))}
    held["Swarm"] = swarm(rates, layers, least_stages(rates, layers))
    held["separate"] = {
        node: part
        for nodes in _by_kind(problem.cluster, list(problem.cluster.machines)).values()
        if len(nodes) <= layers <= sum(len(rates[node]) for node in nodes)
        for node, part in separate(nodes, layers).items()
    }
    return list(_with_flow(problem, held))


def _with_flow(problem: Problem, held: dict[str, dict[int, range]]) -> Iterator[Candidate]:
    for name, ranges in held.items():
        hops = connect(problem.cluster, ranges, problem.model.layers, partial=name == "Petals")
        placement = LayerPlacement(ranges, hops)
        try:
            flow = max_flow(placement, problem.cluster, problem.model, problem.throughput)
        except NoFlowError:
            continue
        yield Candidate(name, placement, flow)


def places(cluster: MachineCluster) -> list[list[int]]:
    """Nodes that fast links join, in the order of their first node."""
    import networkx as nx

    inner = {pair: link.bandwidth_bytes_per_s for pair, link in cluster.links.items() if min(pair) >= 0}
    least = _NEAR * max(inner.values(), default=0)
    graph = nx.Graph()
    graph.add_nodes_from(cluster.machines)
    graph.add_edges_from(pair for pair, bandwidth in inner.items() if bandwidth >= least)
    return sorted(map(sorted, nx.connected_components(graph)))


def _by_kind(cluster: MachineCluster, place: Sequence[int]) -> dict[str, list[int]]:
    return grouped(place, lambda node: cluster.machines[node].name)


class _Search:
    """The CPU time that is spent, in this process and in those of the executor, and what was simulated."""

    def __init__(self, problem: Problem, executor: Executor, workers: int, full_s: float) -> None:
        self.problem = problem
        self.pools = problem.pools()
        self.estimate = problem.estimate(self.pools)
        #: By seed: the decode tokens per second of each chain that was simulated; 0 if it cannot run.
        self.rates: dict[int, dict[Chain, float]] = defaultdict(dict)
        self.simulations = 0
        self._executor = executor
        self._batch = 2 * workers
        self._full_s = full_s
        self._began_s = process_time()
        self._others_s = 0.0
        self._simulating_s = 0.0

    @property
    def cpu_s(self) -> float:
        return process_time() - self._began_s + self._others_s

    def results(self, tasks: Sequence[Callable[[], T]], until_s: float = inf) -> list[T]:
        """The results of tasks that the executor's processes run: a batch at least, and all if that CPU time allows it."""
        found: list[T] = []
        for first in range(0, len(tasks), self._batch):
            for result, cpu_s in self._executor.map(_timed, tasks[first : first + self._batch]):
                self._others_s += cpu_s
                found.append(result)
            if self.cpu_s > until_s:
                break
        return found

    def annealed(self, until_s: float, random: Random) -> list[Plan]:
        """Plans by their estimate, the best first."""
        problem, layers = self.problem, self.problem.model.layers
        speed = [problem.speed(pool) for pool in self.pools]
        plans = starts(self.pools, layers, speed, random, _STARTS)
        if not plans:
            most = sum(len(pool.nodes) * pool.max_layers for pool in self.pools)
            raise ValueError(f"the machines cannot hold the model: {most} of {layers} layers at most")
        known = {plan: self.estimate(plan) for plan in plans}
        for steps, number in _ROUNDS:
            tasks = [
                partial(_annealed, problem, self.pools, plan, steps, random.random())
                for plan in _ranked(known)[:number]
            ]
            known |= {plan: value for value, plan in self.results(tasks, until_s)}
            if self.cpu_s > until_s:
                break
        return [plan for plan in _ranked(known) if known[plan] > 0]

    def simulated(self, candidates: Sequence[Candidate], seed: int, until_s: float = inf) -> list[float]:
        """Decode tokens per second of each, or of the first."""
        tasks = [partial(self.problem.score, each, self._full_s, seed) for each in candidates]
        before_s = self._others_s
        scores = self.results(tasks, until_s)
        self._simulating_s += self._others_s - before_s
        self.simulations += len(scores)
        return scores

    def simulate(self, plans: Sequence[Plan], seed: int, until_s: float = inf) -> None:
        """Simulates the chains that are new, each by itself: a batch at least and more if that CPU time allows it."""
        rates = self.rates[seed]
        fresh = list(dict.fromkeys(chain for plan in plans for chain in plan if chain not in rates))
        alone = [self.problem.candidate(self.pools, (chain,), [1.0]) for chain in fresh]
        rates |= dict(zip(fresh, self.simulated(alone, seed, until_s), strict=False))

    def rate(self, plan: Plan, seed: int) -> float:
        """What the plan's chains give together; 0 if one cannot run or was not simulated."""
        rates = [self.rates[seed].get(chain, 0.0) for chain in plan]
        return sum(rates) if all(rates) else 0.0

    def has_time(self, until_s: float, last: int) -> bool:
        """Whether a batch of neighbors, and the `last` simulations after it, will be done by that CPU time."""
        simulation_s = self._simulating_s / max(self.simulations, 1)
        return self.cpu_s + (self._batch + last) * simulation_s <= until_s

    def neighbors(self, plans: Sequence[Plan], seed: int, random: Random) -> list[Plan]:
        """Neighbors of the plans with a chain that is new. They promise most by the rates of their chains, or the estimate
        of a new chain, corrected as that of the chain in its place."""
        rates = self.rates[seed]
        promised: dict[Plan, float] = {}
        for plan in plans:
            errors = [rates[chain] / self.estimate.chain(chain) for chain in plan]
            for _ in range(_NEIGHBORS):
                near = neighbor(self.pools, plan, random)
                if near is not None and not all(chain in rates for chain in near):
                    estimates = [
                        rates.get(chain, error * self.estimate.chain(chain))
                        for chain, error in zip(near, errors, strict=True)
                    ]
                    promised[near] = sum(estimates) if all(estimates) else 0.0
        return [plan for plan in _ranked(promised)[: self._batch] if promised[plan] > 0]


def best_placement(
    problem: Problem,
    cpu_s: float,
    executor: Executor,
    workers: int,
    seed: int = 0,
    full_s: float = OFFLINE_S,
) -> Found:
    """The best placement found in this CPU time of all processes; a time that is too short for the first batches and the last
    seeds is overrun. ValueError if the machines cannot hold the model."""
    search, random = _Search(problem, executor, workers, full_s), Random(seed)
    first, *more = seeds = [seed + each for each in _SEEDS]
    plans = search.annealed(_ANNEALED * cpu_s, random)[:_MOST_PLANS]
    search.simulate(plans, first, _SIMULATED * cpu_s)

    def best(number: int) -> list[Plan]:
        ranked = sorted(plans, key=lambda plan: -search.rate(plan, first))[:number]
        return [plan for plan in ranked if search.rate(plan, first)]

    others = baselines(problem)
    longest = max(map(len, plans), default=1)
    last_simulations = len(more) * _FINALISTS * longest + len(seeds) * len(others)
    while search.has_time(cpu_s, last_simulations) and (near := search.neighbors(best(_BEST), first, random)):
        search.simulate(near, first)
        plans += near
    means: list[tuple[float, Candidate]] = []
    finalists = best(_FINALISTS)
    for each in more:
        search.simulate(finalists, each)
    for plan in finalists:
        weights = [fmean(search.rates[each][chain] for each in seeds) for chain in plan]
        if all(weights):
            means.append((sum(weights), problem.candidate(search.pools, plan, weights)))
    scores = [search.simulated(others, each) for each in seeds]
    means += zip(map(fmean, zip(*scores, strict=True)), others, strict=True)
    tokens_per_s, candidate = max(means, key=lambda each: each[0], default=(0.0, None))
    if candidate is None or not tokens_per_s:
        raise ValueError("no placement can run: links that it needs are missing")
    return Found(candidate, tokens_per_s, search.simulations, search.cpu_s)


def _ranked(scores: dict[T, float]) -> list[T]:
    return sorted(scores, key=lambda each: -scores[each])


def _timed(task: Callable[[], T]) -> tuple[T, float]:
    began_s = process_time()
    return task(), process_time() - began_s


def _annealed(
    problem: Problem, pools: Sequence[MachinePool], plan: Plan, steps: int, seed: float
) -> tuple[float, Plan]:
    return anneal(pools, plan, problem.estimate(pools), steps, Random(seed))
