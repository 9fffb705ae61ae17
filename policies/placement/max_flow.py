"""The max-flow graph of a placement: how many tokens per second each link carries at best.

Source: Helix (ASPLOS '25). A node is the chain in -> start -> end -> out. Its NIC bounds the outer two edges, its T(k)
(`node_throughput`) the middle one, a link's bandwidth the edge between two nodes. All capacities are tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.placement.pipeline import SINK, SOURCE, LayeredModel, LayerPlacement, MachineCluster

_IN, _START, _END, _OUT = range(4)


@dataclass(frozen=True, slots=True)
class Flow:
    """The maximum flow of a placement, in tokens per second: the whole, and each hop's, in the order of `LayerPlacement.hops`."""

    tokens_per_s: float
    hops: tuple[float, ...]


class NoFlowError(ValueError):
    """No request can go from the source through all layers to the sink."""


def max_flow(
    placement: LayerPlacement,
    cluster: MachineCluster,
    model: LayeredModel,
    throughput: Callable[[str, int], float],
) -> Flow:
    """The maximum flow of a placement. NoFlowError if there is none."""
    import networkx as nx

    # Nodes are numbers: the order of a set of strings, and with it which maximum flow is found, differs from run to run.
    number = {node: 4 * position for position, node in enumerate((SOURCE, SINK, *placement.ranges))}
    graph = nx.DiGraph()
    nic = cluster.coordinator_nic_bytes_per_s / model.token_bytes
    graph.add_edge("source", number[SOURCE] + _OUT, capacity=nic)
    graph.add_edge(number[SINK] + _IN, "sink", capacity=nic)
    inner = model.token_bytes + model.activation_bytes
    for node, part in placement.ranges.items():
        machine, first = cluster.machines[node], number[node]
        senders = [hop.sender for hop in placement.hops if hop.receiver == node]
        receivers = [hop.receiver for hop in placement.hops if hop.sender == node]
        into = machine.nic_bytes_per_s / (model.token_bytes if senders == [SOURCE] else inner)
        out = machine.nic_bytes_per_s / (model.token_bytes if receivers == [SINK] else inner)
        graph.add_edge(first + _IN, first + _START, capacity=into)
        graph.add_edge(first + _START, first + _END, capacity=throughput(machine.name, part.layers))
        graph.add_edge(first + _END, first + _OUT, capacity=out)
    for hop in placement.hops:
        size = model.token_bytes if hop.sender == SOURCE or hop.receiver == SINK else inner
        sender, receiver = number[hop.sender] + _OUT, number[hop.receiver] + _IN
        graph.add_edge(sender, receiver, capacity=hop.bandwidth_bytes_per_s / size)
    value, flow = nx.maximum_flow(graph, "source", "sink")
    if not value:
        raise NoFlowError(f"no request can pass: {_why_no_flow(placement, model)}")
    return Flow(
        value, tuple(flow[number[hop.sender] + _OUT][number[hop.receiver] + _IN] for hop in placement.hops)
    )


def _why_no_flow(placement: LayerPlacement, model: LayeredModel) -> str:
    held = {layer for part in placement.ranges.values() for layer in range(part.start, part.end)}
    if missing := sorted(set(range(model.layers)) - held):
        return f"no node holds layer {missing[0]} ({len(missing)} of {model.layers} layers are held by none)"
    return "no links lead through nodes that hold all layers one after another"
