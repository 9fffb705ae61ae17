"""Swarm: equal stages, and each node, the fastest first, to the stage with the least throughput.

Source: SWARM parallelism (ICML '23), as Helix's artifact runs it.
"""

from __future__ import annotations

from policies.placement.petals import NodeRates
from policies.placement.pipeline import LayerRange


def swarm(rates: NodeRates, layers: int, stages: int) -> dict[int, LayerRange]:
    """The layers of each node. ValueError if the stages are not equal or too large for a node."""
    size, rest = divmod(layers, stages)
    if rest:
        raise ValueError(f"{layers} layers are not {stages} equal stages")
    if small := [node for node, held in rates.items() if len(held) < size]:
        raise ValueError(f"node {small[0]} cannot hold a stage of {size} layers")
    throughput = [0.0] * stages
    held: dict[int, LayerRange] = {}
    for node in sorted(rates, key=lambda node: (rates[node][size - 1], node), reverse=True):
        stage = throughput.index(min(throughput))
        throughput[stage] += rates[node][size - 1]
        held[node] = LayerRange(stage * size, (stage + 1) * size)
    return {node: held[node] for node in rates}


def least_stages(rates: NodeRates, layers: int) -> int:
    """The fewest equal stages that fit into every node."""
    largest = min(map(len, rates.values()))
    return next(
        stages for stages in range(1, layers + 1) if layers % stages == 0 and layers // stages <= largest
    )
