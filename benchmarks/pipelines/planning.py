"""Headway's own placements of layers: candidates from a local search, each scored by the simulation of a closed loop.

A first round simulates briefly; the best of it are simulated in full, on another seed, and the best of those wins. So no plan
wins by the luck of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from random import Random
from time import monotonic

from benchmarks.pipelines.compiled import KvCacheFull
from benchmarks.pipelines.simulate import FIRST_REQUESTS, OFFLINE_S, Setting, max_flow_scheduler
from policies.placement.layer_stages import Plan, Pool, ranges, search, starts
from policies.placement.max_flow import max_flow
from policies.placement.pipeline import LayeredModel, LayerPlacement, MachineCluster, connect

#: Share of the time for the first round, the share of the full simulation that it takes, and how many plans are simulated in full.
_FIRST_ROUND, _BRIEF_S, _FINALISTS = 0.7, 0.25, 8
_STARTS = 8
#: Nodes are in one place if their wire has at least this share of the fastest wire's bandwidth.
_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be placed, and the requests that it is to serve."""

    cluster: MachineCluster
    model: LayeredModel
    throughput: Callable[[str, int], float]
    lengths: Sequence[tuple[int, int]]

    def pools(self) -> list[Pool]:
        """Machines of one kind in one place, places one after another."""
        return [
            Pool(tuple(nodes), self.cluster.machines[nodes[0]].max_layers)
            for place in places(self.cluster)
            for nodes in _by_kind(self.cluster, place)
        ]

    def speed(self, pool: Pool) -> float:
        """Layers times tokens/s of a pool's machines when they are two thirds full."""
        layers = max(1, round(pool.max_layers * 2 / 3))
        return len(pool.nodes) * layers * self.throughput(self.cluster.machines[pool.nodes[0]].name, layers)

    def placement(self, pools: Sequence[Pool], plan: Plan) -> LayerPlacement:
        held = ranges(pools, plan)
        return LayerPlacement(held, connect(self.cluster, held, self.model.layers))

    def score(self, placement: LayerPlacement, seconds: float, seed: int) -> float:
        """Decode tokens per second; 0 for a placement that a KV cache cannot hold."""
        flow = max_flow(placement, self.cluster, self.model, self.throughput)
        setting = Setting(placement, self.cluster, self.model)
        scheduler = max_flow_scheduler(flow, online=False)
        try:
            return setting.offline(scheduler, self.lengths, FIRST_REQUESTS, seed, seconds).decode_tokens_per_s
        except KvCacheFull:
            return 0.0


def places(cluster: MachineCluster) -> list[list[int]]:
    """Nodes that fast wires join, in the order of their first node."""
    fastest = max(
        (wire.bandwidth_bytes_per_s for (a, b), wire in cluster.wires.items() if min(a, b) >= 0), default=0
    )
    found: list[list[int]] = []
    for node in cluster.machines:
        near = [place for place in found if _near(cluster, node, place, _NEAR * fastest)]
        joined = sorted(sum(near, [node]))
        found = sorted([*(place for place in found if place not in near), joined])
    return found


def _near(cluster: MachineCluster, node: int, place: Sequence[int], least: float) -> bool:
    wires = (cluster.wire(node, other) for other in place)
    return any(wire is not None and wire.bandwidth_bytes_per_s >= least for wire in wires)


def _by_kind(cluster: MachineCluster, place: Sequence[int]) -> list[list[int]]:
    kinds: dict[str, list[int]] = {}
    for node in place:
        kinds.setdefault(cluster.machines[node].name, []).append(node)
    return list(kinds.values())


def best_placement(
    problem: Problem,
    time_s: float,
    executor: Executor,
    workers: int,
    seed: int = 0,
    full_s: float = OFFLINE_S,
) -> tuple[float, LayerPlacement]:
    """The best placement found in about this time, with its decode tokens per second on `seed` + 1. ValueError if there is none."""
    began, random, pools = monotonic(), Random(seed), problem.pools()
    weight = {place: problem.speed(pool) for place, pool in enumerate(pools)}
    first = starts(pools, problem.model.layers, weight, random, _STARTS)
    if not first:
        raise ValueError("the machines cannot hold the model")
    made = partial(problem.placement, pools)

    def scores(plans: Sequence[Plan]) -> Sequence[float]:
        return list(
            executor.map(partial(problem.score, seconds=_BRIEF_S * full_s, seed=seed), map(made, plans))
        )

    def more() -> bool:
        return monotonic() - began < time_s * _FIRST_ROUND

    ranked = search(pools, first, scores, random, 3 * workers, more)
    finalists = [made(plan) for _, plan in ranked[:_FINALISTS]]
    full = list(executor.map(partial(problem.score, seconds=full_s, seed=seed + 1), finalists))
    return max(zip(full, finalists, strict=True), key=lambda pair: pair[0])
