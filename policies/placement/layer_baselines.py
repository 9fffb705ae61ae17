"""Placements of layers to compare with: Petals, Swarm and separate pipelines, as Helix's artifact (ASPLOS '25) runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

#: A node's tokens per second with k layers, k from 1 to what it can hold.
NodeRates = Mapping[int, tuple[float, ...]]


def petals(rates: NodeRates, layers: int, random: Random) -> dict[int, range]:
    """The layers of each node. Nodes join in random order, and each takes as many layers as it can, where throughput is lowest so
    far. Windows of layers are compared by the throughput of their layers, the lowest first. Source: Petals (arXiv 2312.08361),
    appendix D."""
    order = list(rates)
    random.shuffle(order)
    served = [0.0] * layers
    held: dict[int, range] = {}
    for node in order:
        size = len(rates[node])
        start = min(range(layers - size + 1), key=lambda first: sorted(served[first : first + size]))
        held[node] = range(start, start + size)
        for layer in held[node]:
            served[layer] += rates[node][-1]
    return {node: held[node] for node in rates}


def swarm(rates: NodeRates, layers: int, stages: int) -> dict[int, range]:
    """The layers of each node. Stages are equal, and each node, the fastest first, goes to the stage with the least throughput.
    Source: SWARM parallelism (ICML '23). ValueError if the stages are not equal or too large for a node."""
    size, rest = divmod(layers, stages)
    if rest:
        raise ValueError(f"{layers} layers are not {stages} equal stages")
    if small := [node for node, held in rates.items() if len(held) < size]:
        raise ValueError(f"node {small[0]} cannot hold a stage of {size} layers")
    throughput = [0.0] * stages
    held: dict[int, range] = {}
    for node in sorted(rates, key=lambda node: (rates[node][size - 1], node), reverse=True):
        stage = throughput.index(min(throughput))
        throughput[stage] += rates[node][size - 1]
        held[node] = range(stage * size, (stage + 1) * size)
    return {node: held[node] for node in rates}


def least_stages(rates: NodeRates, layers: int) -> int:
    """The fewest equal stages that fit into every node."""
    largest = min(map(len, rates.values()))
    return next(
        stages for stages in range(1, layers + 1) if layers % stages == 0 and layers // stages <= largest
    )


def separate(nodes: Sequence[int], layers: int) -> dict[int, range]:
    """The layers of the nodes of one chain, in its order: the machines of one kind hold the whole model in equal parts. If the
    layers cannot be divided evenly, the first nodes hold one less. As in the original, a machine may hold more layers than its
    limit; it counts as full. ValueError if there are more nodes than layers."""
    size, longer = divmod(layers, len(nodes))
    if not size:
        raise ValueError(f"{len(nodes)} nodes for {layers} layers")
    held, start = {}, 0
    for place, node in enumerate(nodes):
        end = start + size + (place >= len(nodes) - longer)
        held[node] = range(start, end)
        start = end
    return held
