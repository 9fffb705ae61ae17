"""Separate pipelines: the machines of each kind hold the whole model, in equal parts.

Source: Helix (ASPLOS '25), its baseline of that name. If the layers cannot be divided evenly, the first nodes hold one less. As
in the original, a machine may hold more layers than its limit; it counts as full.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.pipeline import LayerRange


def separate(nodes: Sequence[int], layers: int) -> dict[int, LayerRange]:
    """The layers of the nodes of one chain, in its order. ValueError if there are more nodes than layers."""
    size, longer = divmod(layers, len(nodes))
    if not size:
        raise ValueError(f"{len(nodes)} nodes for {layers} layers")
    held, start = {}, 0
    for place, node in enumerate(nodes):
        end = start + size + (place >= len(nodes) - longer)
        held[node] = LayerRange(start, end)
        start = end
    return held
