"""A placement under load: offline, with as many requests as fit, or online, with requests that arrive by a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from random import Random
from types import ModuleType

from benchmarks.pipelines import compiled
from benchmarks.pipelines.engine import Engine, Link, Node, Scheduler
from policies.placement.max_flow import Flow
from policies.placement.pipeline import (
    SINK,
    SOURCE,
    Hop,
    LayeredModel,
    LayerPlacement,
    LayerTime,
    MachineCluster,
)

OFFLINE_WARM_UP_S, OFFLINE_S, ONLINE_S = 60.0, 600.0, 1800.0
#: Requests in the closed loop of a max-flow scheduler at the start; it adds its own.
FIRST_REQUESTS = 20
#: Seconds between the first requests.
_FIRST_GAP_S = 0.1
_INTERVAL_S = 3
#: A layer takes so many times as long for one decode as was measured.
_LONE_DECODE = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation measured. Latencies in s, ascending; `stay_s` is a prompt's mean time in each node."""

    decode_tokens_per_s: float
    prompt_latency_s: Sequence[float]
    decode_latency_s: Sequence[float]
    stay_s: Mapping[int, float]
    finished: int
    refused: int
    events: int


def arrivals(
    per_interval: Sequence[int],
    lengths: Sequence[tuple[int, int]],
    tokens_per_s: float,
    start_s: float,
    random: Random,
) -> list[tuple[float, int, int]]:
    """Moments and lengths of requests over `ONLINE_S`: counts of a trace drawn with replacement, scaled to a mean load."""
    mean_tokens = sum(a for a, _ in lengths) / len(lengths) + sum(b for _, b in lengths) / len(lengths)
    scale = _INTERVAL_S * (tokens_per_s / mean_tokens) / (sum(per_interval) / len(per_interval))
    draw = partial(random.choice, lengths)
    trace: list[tuple[float, int, int]] = []
    carried = 0.0
    for interval in range(int(ONLINE_S) // _INTERVAL_S):
        wanted = scale * random.choice(per_interval)
        count = round(wanted + carried)
        carried = wanted + carried - count
        moments = sorted(
            start_s + interval * _INTERVAL_S + _INTERVAL_S * random.random() for _ in range(count)
        )
        trace += [(moment, *draw()) for moment in moments]
    return trace


def loaded_s(placement: LayerPlacement, cluster: MachineCluster, model: LayeredModel) -> float:
    """When the first requests may come: a second after all weights are read from disk."""
    longest = max(
        sum([model.layer_bytes] * len(part)) / cluster.machines[node].disk_bytes_per_s
        for node, part in placement.ranges.items()
    )
    return ceil(longest) + 1


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A placed model on its machines."""

    placement: LayerPlacement
    cluster: MachineCluster
    model: LayeredModel

    def offline(
        self,
        scheduler: Callable[[Random], Scheduler],
        lengths: Sequence[tuple[int, int]],
        requests: int,
        seed: int = 0,
        seconds: float = OFFLINE_S,
    ) -> Outcome:
        """A closed loop that begins with so many requests."""
        random = Random(seed)
        start_s = loaded_s(self.placement, self.cluster, self.model)
        end_s = start_s + OFFLINE_WARM_UP_S + seconds
        draw = partial(random.choice, lengths)
        engine = self.engine(scheduler(random), (start_s + OFFLINE_WARM_UP_S, end_s), draw)
        for number in range(requests):
            engine.submit(start_s + number * _FIRST_GAP_S, *draw())
        engine.run(end_s)
        return _outcome(engine, seconds)

    def online(
        self,
        scheduler: Callable[[Random], Scheduler],
        lengths: Sequence[tuple[int, int]],
        per_interval: Sequence[int],
        tokens_per_s: float,
        seed: int = 0,
    ) -> Outcome:
        """An open loop over `ONLINE_S` with a mean load in prompt and answer tokens per second."""
        random = Random(seed)
        start_s = loaded_s(self.placement, self.cluster, self.model)
        trace = arrivals(per_interval, lengths, tokens_per_s, start_s, random)
        engine = self.engine(scheduler(random), (start_s, start_s + ONLINE_S), None)
        for arrival in trace:
            engine.submit(*arrival)
        engine.run(inf)
        return _outcome(engine, ONLINE_S)

    def engine(
        self,
        scheduler: Scheduler,
        window: tuple[float, float],
        lengths: Callable[[], tuple[int, int]] | None = None,
        module: ModuleType = compiled.engine,
    ) -> Engine:
        """The events of this placed model before the first. `module` has the `Engine`, `Node` and `Link` to use."""
        nodes = self._nodes(module)
        links = [self._link(module, nodes, number, hop) for number, hop in enumerate(self.placement.hops)]
        machines = [nodes[place] for place in self.placement.ranges]
        engine: Engine = module.Engine(
            nodes[SOURCE],
            nodes[SINK],
            machines,
            links,
            scheduler,
            self.model.activation_bytes,
            window,
            lengths,
        )
        return engine

    def _nodes(self, module: ModuleType) -> dict[int, Node]:
        nic = self.cluster.coordinator_nic_bytes_per_s
        nodes: dict[int, Node] = {SOURCE: module.Node(0, nic), SINK: module.Node(1, nic)}
        tables: dict[str, tuple[list[float], list[float]]] = {}
        for place, part in self.placement.ranges.items():
            machine = self.cluster.machines[place]
            limits = machine.limits_of(len(part))
            node = nodes[place] = module.Node(len(nodes), machine.nic_bytes_per_s)
            node.first_layer = part.start
            node.hold(len(part))
            node.prompt_requests = limits.prompt_requests
            node.prompt_tokens = limits.prompt_tokens
            node.decode_requests = limits.decode_requests
            node.decode_context = limits.decode_context_tokens
            node.kv_room = self.placement.kv_token_layers.get(place, limits.kv_token_layers)
            if machine.name not in tables:
                tables[machine.name] = _table(machine.prompt), _table(machine.decode)
                tables[machine.name][1][1] *= _LONE_DECODE
            node.prompt_s, node.decode_s = tables[machine.name]
        return nodes

    def _link(self, module: ModuleType, nodes: Mapping[int, Node], number: int, hop: Hop) -> Link:
        (a, b), model, wire = hop, self.model, self.cluster.link(*hop)
        size = model.token_bytes
        if a != SOURCE and b != SINK:
            size += model.activation_bytes
        sender, receiver = nodes[a], nodes[b]
        link: Link = module.Link(number, sender, receiver, wire.bandwidth_bytes_per_s, wire.latency_s, size)
        if b != SINK:
            enters_at = 0 if a == SOURCE else self.placement.ranges[a].stop
            link.entry = enters_at - receiver.first_layer
            link.layers = receiver.layers - link.entry
        sender.links.append(link)
        receiver.incoming.append(link)
        return link


def _table(times: LayerTime) -> list[float]:
    """The time of every size up to the greatest that was measured."""
    return [times.at(size) for size in range(times.sizes[-1] + 1)]


def _outcome(engine: Engine, seconds: float) -> Outcome:
    return Outcome(
        len(engine.decode_latency_s) / seconds,
        sorted(engine.prompt_latency_s),
        sorted(engine.decode_latency_s),
        {number: engine.stay_s[number] / count for number, count in enumerate(engine.stays) if count},
        engine.finished,
        engine.refused,
        engine.events,
    )


def max_flow_scheduler(flow: Flow, *, online: bool) -> Callable[[Random], Scheduler]:
    """Helix's scheduler with the limits that its simulations use."""
    high_water, output_share = (0.9, 0.6) if online else (0.85, 1.0)
    return lambda _: compiled.schedulers.MaxFlow(list(flow.values()), high_water, output_share)


SCHEDULERS: Mapping[str, Callable[[Random], Scheduler]] = {
    "swarm": lambda _: compiled.schedulers.Swarm(),
    "random": compiled.schedulers.RandomChoice,
    "shortest_queue": compiled.schedulers.ShortestQueue,
}
