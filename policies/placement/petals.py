"""Petals: nodes join in random order. Each takes as many layers as it can, where throughput is lowest so far.

Source: Petals (arXiv 2312.08361), appendix D, as Helix's artifact runs it. Windows of layers are compared by the throughput of
their layers, the lowest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from policies.placement.pipeline import LayerRange

#: A node's tokens per second with k layers, k from 1 to what it can hold.
NodeRates = Mapping[int, tuple[float, ...]]


def petals(rates: NodeRates, layers: int, random: Random) -> dict[int, LayerRange]:
    """The layers of each node."""
    order = list(rates)
    random.shuffle(order)
    served = [0.0] * layers
    held: dict[int, LayerRange] = {}
    for node in order:
        size = len(rates[node])
        start = min(range(layers - size + 1), key=lambda first: sorted(served[first : first + size]))
        held[node] = LayerRange(start, start + size)
        for layer in range(start, start + size):
            served[layer] += rates[node][-1]
    return {node: held[node] for node in rates}
