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

    def joins(self, a: int, b: int) -> bool:
        """Whether there is a link between two nodes."""
        return (a, b) in self.links or (b, a) in self.links

    def link(self, a: int, b: int) -> NodeLink:
        """The link between two nodes, in whichever direction it is written. ValueError if there is none."""
        if not self.joins(a, b):
            raise ValueError(f"no link joins nodes {a} and {b}")
        return self.links[a, b] if (a, b) in self.links else self.links[b, a]

    def counts(self) -> dict[str, int]:
        """How many machines of each kind."""
        return dict(Counter(machine.name for machine in self.machines.values()))


#: A link that requests may take: sender and receiver.
Hop = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Which layers each node holds, and over which links requests go. The order of both breaks ties in a simulation.

    `kv_token_layers` is a node's room for keys and values where it is not the machine's own for so many layers.
    """

    ranges: Mapping[int, range]
    hops: tuple[Hop, ...]
    kv_token_layers: Mapping[int, int] = field(default_factory=dict)


def connect(
    cluster: MachineCluster, ranges: Mapping[int, range], layers: int, *, partial: bool = False
) -> tuple[Hop, ...]:
    """All links over which a request can go on: where one node ends, the next starts (`partial`: or holds that layer)."""

    def follows(sender: int, receiver: int) -> bool:
        if receiver == SINK:
            return ranges[sender].stop == layers
        layer = 0 if sender == SOURCE else ranges[sender].stop
        return ranges[receiver].start == layer or (partial and layer in ranges[receiver])

    return tuple(
        (a, b)
        for a in (SOURCE, *ranges)
        for b in (*ranges, SINK)
        if a != b and (a, b) != (SOURCE, SINK) and follows(a, b) and cluster.joins(a, b)
    )
