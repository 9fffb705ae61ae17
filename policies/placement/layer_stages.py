"""Headway's placements of layers: chains of stages. All machines of a stage hold the same layers, whatever their kinds.

A request takes one machine of each stage of one chain. The machines of a stage take shares in proportion to their
throughput, so none is idle. A maximum flow differs: if a stage has more machines than it needs, the flow may use some fully and
others not at all, and the KV memory of the idle ones is lost.

Machines of one pool are alike, so a stage says how many of each pool it has. `layer_stage_moves` has the steps of a search,
`layer_stage_estimate` an estimate of what a plan gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.placement.max_flow import Flow
from policies.placement.pipeline import SINK, SOURCE, Hop, LayerPlacement, MachineCluster


@dataclass(frozen=True, slots=True)
class MachinePool:
    """The nodes of one kind in one place, and the most layers that one of them holds."""

    kind: str
    nodes: tuple[int, ...]
    max_layers: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers of a model, and how many machines of each pool hold them."""

    layers: int
    machines: tuple[int, ...]

    def changed(self, pool: int, count: int) -> Stage:
        """This stage with more (or fewer) machines of a pool."""
        machines = list(self.machines)
        machines[pool] += count
        return Stage(self.layers, tuple(machines))


#: The stages of a chain hold all layers of the model together, in order.
Chain = tuple[Stage, ...]
Plan = tuple[Chain, ...]
#: Tokens per second of a machine kind that holds so many layers.
Throughput = Callable[[str, int], float]


def feasible(pools: Sequence[MachinePool], stage: Stage) -> bool:
    """Whether the stage has a layer and a machine, and no machine too many layers."""
    return (
        stage.layers >= 1
        and any(stage.machines)
        and all(
            count >= 0 and (not count or stage.layers <= pool.max_layers)
            for pool, count in zip(pools, stage.machines, strict=True)
        )
    )


def idle(pools: Sequence[MachinePool], plan: Plan) -> list[int]:
    """How many machines of each pool the plan leaves out."""
    left = [len(pool.nodes) for pool in pools]
    for chain in plan:
        for stage in chain:
            left = [free - count for free, count in zip(left, stage.machines, strict=True)]
    return left


def shares(pools: Sequence[MachinePool], stage: Stage, throughput: Throughput) -> dict[int, float]:
    """The part of a stage's requests that one machine of each of its pools takes."""
    rates = {
        place: throughput(pools[place].kind, stage.layers)
        for place, count in enumerate(stage.machines)
        if count
    }
    whole = sum(rate * stage.machines[place] for place, rate in rates.items())
    return {place: rate / whole for place, rate in rates.items()}


def placed(
    cluster: MachineCluster,
    pools: Sequence[MachinePool],
    plan: Plan,
    throughput: Throughput,
    weights: Sequence[float],
) -> tuple[LayerPlacement, Flow]:
    """The plan with its nodes, and the flow through it. `weights` are the tokens per second of each chain. ValueError if a link
    is missing."""
    nodes = [iter(pool.nodes) for pool in pools]
    held: dict[int, range] = {}
    flow: dict[Hop, float] = {}
    for chain, weight in zip(plan, weights, strict=True):
        start, senders = 0, {SOURCE: 1.0}
        for stage in chain:
            share = shares(pools, stage, throughput)
            receivers = {
                next(nodes[place]): part
                for place, part in share.items()
                for _ in range(stage.machines[place])
            }
            held |= dict.fromkeys(receivers, range(start, start + stage.layers))
            flow |= _flows(senders, receivers, weight)
            start, senders = start + stage.layers, receivers
        flow |= _flows(senders, {SINK: 1.0}, weight)
    for hop in flow:
        cluster.link(*hop)
    return LayerPlacement(dict(sorted(held.items())), tuple(flow)), flow


def _flows(senders: dict[int, float], receivers: dict[int, float], weight: float) -> dict[Hop, float]:
    return {(a, b): weight * x * y for a, x in senders.items() for b, y in receivers.items()}


def described(pools: Sequence[MachinePool], plan: Plan) -> str:
    """The plan in a line: `9:1A100 7:2L4+1T4` is a chain whose stages hold 9 and 7 layers; `|` divides chains."""
    return " | ".join(
        " ".join(
            f"{stage.layers}:"
            + "+".join(
                f"{count}{pool.kind}" for pool, count in zip(pools, stage.machines, strict=True) if count
            )
            for stage in chain
        )
        for chain in plan
    )
