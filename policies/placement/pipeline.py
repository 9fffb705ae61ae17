"""A model split over unlike machines by layers: the machines, the model, the links, and which node holds which layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Where iterations begin and end: the coordinator's two sides.
SOURCE, SINK = -1, -2


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """A model as a planner sees it. Bytes are of one token on a link, and of one layer's weights."""

    name: str
    layers: int
    token_bytes: int
    activation_bytes: int
    layer_bytes: float


@dataclass(frozen=True, slots=True)
class LayerLimits:
    """What a machine can do while it holds a number of layers."""

    kv_token_layers: int
    prompt_requests: int
    prompt_tokens: int
    decode_requests: int
    decode_context_tokens: int


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Time of one layer in s at measured sizes of a batch, ascending; linear in between."""

    sizes: tuple[int, ...]
    times_s: tuple[float, ...]

    def at(self, size: int) -> float:
        """Time for a batch of `size` tokens (prompts) or requests (decode). ValueError outside what was measured."""
        for position, right in enumerate(self.sizes):
            if size == right:
                return self.times_s[position]
            if size < right and position:
                left, low, high = self.sizes[position - 1], *self.times_s[position - 1 : position + 1]
                return low + (high - low) * (size - left) / (right - left)
        raise ValueError(
            f"a batch of {size} is outside what was measured ({self.sizes[0]} to {self.sizes[-1]})"
        )


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of machine, with what it does for one model. `limits[k - 1]` are those of k layers."""

    name: str
    nic_bytes_per_s: float
    disk_bytes_per_s: float
    prompt: LayerTime
    decode: LayerTime
    limits: tuple[LayerLimits, ...]

    @property
    def max_layers(self) -> int:
        return len(self.limits)

    def limits_of(self, layers: int) -> LayerLimits:
        """The limits for so many layers; for more layers than are measured, those of the most."""
        return self.limits[min(layers, self.max_layers) - 1]


@dataclass(frozen=True, slots=True)
class NodeLink:
    """The connection of two nodes, alike in both directions."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class MachineCluster:
    """Machines by node, and the links between them and to SOURCE and SINK. `coordinator_nic_bytes_per_s` is SOURCE's and SINK's."""

    machines: Mapping[int, MachineKind]
    links: Mapping[tuple[int, int], NodeLink]
    coordinator_nic_bytes_per_s: float = 10e9

    def link(self, a: int, b: int) -> NodeLink | None:
        """The link between two nodes, in whichever direction it is written."""
        return self.links.get((a, b)) or self.links.get((b, a))

    def hop(self, sender: int, receiver: int) -> Hop | None:
        """The link as one that requests may take; None where there is none."""
        link = self.link(sender, receiver)
        return None if link is None else Hop(sender, receiver, link.bandwidth_bytes_per_s, link.latency_s)

    def counts(self) -> dict[str, int]:
        """How many machines of each kind."""
        return dict(Counter(machine.name for machine in self.machines.values()))


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers [start, end) of a model."""

    start: int
    end: int

    @property
    def layers(self) -> int:
        return self.end - self.start

    def accepts(self, layer: int) -> bool:
        """Whether a request whose next layer is `layer` can go on here."""
        return self.start <= layer < self.end


@dataclass(frozen=True, slots=True)
class Hop:
    """A directed link that requests may take."""

    sender: int
    receiver: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Which layers each node holds, and over which links requests go. The order of both breaks ties in a simulation.

    `kv_token_layers` is a node's room for keys and values where it is not the machine's own for so many layers.
    """

    ranges: Mapping[int, LayerRange]
    hops: tuple[Hop, ...]
    kv_token_layers: Mapping[int, int] = field(default_factory=dict)


def connect(
    cluster: MachineCluster, ranges: Mapping[int, LayerRange], layers: int, *, partial: bool = False
) -> tuple[Hop, ...]:
    """All links over which a request can go on: where one node ends, the next starts (`partial`: or holds that layer)."""
    ends = {node: part.end for node, part in ranges.items()}

    def follows(sender: int, receiver: int) -> bool:
        if receiver == SINK:
            return ends[sender] == layers
        layer = 0 if sender == SOURCE else ends[sender]
        return ranges[receiver].start == layer or (partial and ranges[receiver].accepts(layer))

    return tuple(
        hop
        for a in (SOURCE, *ranges)
        for b in (*ranges, SINK)
        if a != b and (a, b) != (SOURCE, SINK) and follows(a, b) and (hop := cluster.hop(a, b))
    )
