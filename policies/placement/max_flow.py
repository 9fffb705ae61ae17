"""The max-flow graph of a placement: how many tokens per second each link carries at best.

Source: Helix (ASPLOS '25). A node is the chain in -> start -> end -> out. Its NIC bounds the outer two edges, its T(k)
(`node_throughput`) the middle one, a link's bandwidth the edge between two nodes. All capacities are tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.placement.pipeline import SINK, SOURCE, Hop, LayeredModel, LayerPlacement, MachineCluster

_IN, _START, _END, _OUT = range(4)

#: Tokens per second of each hop, in the order of `LayerPlacement.hops`.
Flow = Mapping[Hop, float]


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
        senders = [sender for sender, receiver in placement.hops if receiver == node]
        receivers = [receiver for sender, receiver in placement.hops if sender == node]
        into = machine.nic_bytes_per_s / (model.token_bytes if senders == [SOURCE] else inner)
        out = machine.nic_bytes_per_s / (model.token_bytes if receivers == [SINK] else inner)
        graph.add_edge(first + _IN, first + _START, capacity=into)
        graph.add_edge(first + _START, first + _END, capacity=throughput(machine.name, len(part)))
        graph.add_edge(first + _END, first + _OUT, capacity=out)
    edges = {(a, b): (number[a] + _OUT, number[b] + _IN) for a, b in placement.hops}
    for (a, b), edge in edges.items():
        size = model.token_bytes if a == SOURCE or b == SINK else inner
        graph.add_edge(*edge, capacity=cluster.link(a, b).bandwidth_bytes_per_s / size)
    value, flow = nx.maximum_flow(graph, "source", "sink")
    if not value:
        raise NoFlowError(f"no request can pass: {_why_no_flow(placement, model)}")
    return {hop: flow[sender][receiver] for hop, (sender, receiver) in edges.items()}


def _why_no_flow(placement: LayerPlacement, model: LayeredModel) -> str:
    if missing := sorted(set(range(model.layers)).difference(*placement.ranges.values())):
        return f"no node holds layer {missing[0]} ({len(missing)} of {model.layers} layers are held by none)"
    return "no links lead through nodes that hold all layers one after another"
