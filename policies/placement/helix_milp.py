"""Helix's placement as a mixed integer linear program: the layers of each node for the most flow from source to sink.

Source: Helix (ASPLOS '25), section 4, and its artifact. Node i starts at layer s_i and holds k layers where b_ik = 1, so it
ends at e_i = s_i + sum_k k b_ik. Link ij is used where d_ij = 1, and carries f_ij tokens/s:

    maximise sum_i f_source,i      sum_k b_ik = 1      e_i <= L      inflow_i = outflow_i <= sum_k b_ik T_i(k)
    f_ij <= capacity_ij d_ij       s_i <= L (1 - d_source,i)         L d_i,sink <= e_i
    |s_j - e_i| <= L (1 - d_ij), or with partial inference: s_j <= e_i < e_j

The artifact solves it with Gurobi in 10 to 50 minutes from Petals' or Swarm's placement. HiGHS, which scipy brings, takes no
start; `at_least` stands in for it: no placement with less flow is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from policies.placement.layer_baselines import NodeRates
from policies.placement.pipeline import SINK, SOURCE, LayeredModel, MachineCluster


@dataclass(frozen=True, slots=True)
class Solution:
    """A placement, its flow in tokens/s, and the least flow of which the solver has shown that it cannot be exceeded."""

    ranges: dict[int, range]
    tokens_per_s: float
    bound: float


class HelixProgram:
    """The program for a cluster. `rows`, `columns` and `nonzeros` are its size."""

    def __init__(
        self, cluster: MachineCluster, model: LayeredModel, rates: NodeRates, *, partial: bool = False
    ) -> None:
        self._layers = model.layers
        self._rates = rates
        self._columns: dict[tuple[object, ...], int] = {}
        self._entries: list[tuple[int, int, float]] = []
        self._least: list[float] = []
        self._most: list[float] = []
        self._edges = list(_edges(cluster))
        for node in rates:
            self._column("start", node)
        for node, held in rates.items():
            for layers in range(1, len(held) + 1):
                self._column("holds", node, layers)
        for kind in ("flow", "used"):
            for edge in self._edges:
                self._column(kind, edge)
        self._capacity: dict[tuple[int, int], float] = {}
        for (a, b), link in cluster.links.items():
            size = model.token_bytes if a == SOURCE or b == SINK else model.activation_bytes
            self._capacity[a, b] = self._capacity[b, a] = link.bandwidth_bytes_per_s / size
        for node in rates:
            self._node_rows(node)
        for edge in self._edges:
            self._edge_rows(edge, partial)

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, columns and nonzeros."""
        return len(self._least), len(self._columns), len(self._entries)

    @property
    def flow_bound(self) -> float:
        """What no placement can exceed: all nodes' best layers x tokens/s, over the model's layers."""
        best = (max(layers * rate for layers, rate in enumerate(held, 1)) for held in self._rates.values())
        return sum(best) / self._layers

    def solve(self, time_limit_s: float, at_least: float = 0.0) -> Solution | None:
        """The best placement that HiGHS finds in this time; None if it finds none."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        size = len(self._least), len(self._columns)
        matrix = csr_array((values, (rows, columns)), shape=size)
        cost, integral, most = np.zeros(size[1]), np.ones(size[1]), np.ones(size[1])
        source = np.zeros(size[1])
        for (kind, *key), column in self._columns.items():
            if kind == "start":
                most[column] = self._layers - 1
            elif kind == "flow":
                integral[column], most[column] = 0, inf
                if key[0] in self._edges and key[0][0] == SOURCE:
                    cost[column], source[column] = -1, 1
        solved = milp(
            cost,
            integrality=integral,
            bounds=Bounds(0, most),
            constraints=[
                LinearConstraint(matrix, self._least, self._most),
                LinearConstraint(source, at_least, self.flow_bound),
            ],
            options={"time_limit": time_limit_s},
        )
        if solved.x is None:
            return None
        return Solution(self._ranges(solved.x), float(-solved.fun), float(-solved.mip_dual_bound))

    def _ranges(self, values: Iterable[float]) -> dict[int, range]:
        value = list(values)
        ranges = {}
        for node, held in self._rates.items():
            start = round(value[self._columns["start", node]])
            size = sum(k * round(value[self._columns["holds", node, k]]) for k in range(1, len(held) + 1))
            ranges[node] = range(start, start + size)
        return ranges

    def _column(self, *key: object) -> None:
        self._columns[key] = len(self._columns)

    def _row(self, least: float, most: float, terms: Iterable[tuple[tuple[object, ...], float]]) -> None:
        row = len(self._least)
        self._least.append(least)
        self._most.append(most)
        self._entries += [(row, self._columns[key], factor) for key, factor in terms]

    def _end(self, node: int, factor: float = 1.0) -> list[tuple[tuple[object, ...], float]]:
        held = range(1, len(self._rates[node]) + 1)
        return [(("start", node), factor), *((("holds", node, k), k * factor) for k in held)]

    def _node_rows(self, node: int) -> None:
        rates = self._rates[node]
        held = range(1, len(rates) + 1)
        inflow = [(("flow", edge), 1.0) for edge in self._edges if edge[1] == node]
        outflow = [(("flow", edge), -1.0) for edge in self._edges if edge[0] == node]
        self._row(1, 1, ((("holds", node, k), 1.0) for k in held))
        self._row(-inf, self._layers, self._end(node))
        self._row(0, 0, [*inflow, *outflow])
        self._row(-inf, 0, [*inflow, *((("holds", node, k), -rates[k - 1]) for k in held)])

    def _edge_rows(self, edge: tuple[int, int], partial: bool) -> None:
        sender, receiver = edge
        layers, used = self._layers, ("used", edge)
        self._row(-inf, 0, [(("flow", edge), 1.0), (used, -self._capacity[edge])])
        if sender == SOURCE:
            self._row(-inf, layers, [(("start", receiver), 1.0), (used, layers)])
        elif receiver == SINK:
            self._row(-inf, 0, [(used, layers), *self._end(sender, -1.0)])
        else:
            starts = (("start", receiver), 1.0)
            self._row(-inf, layers, [starts, *self._end(sender, -1.0), (used, layers)])
            if partial:
                ends = self._end(receiver, -1.0)
                self._row(-inf, layers, [*self._end(sender), *ends, (used, layers + 1)])
            else:
                self._row(-inf, layers, [*self._end(sender), (("start", receiver), -1.0), (used, layers)])


def _edges(cluster: MachineCluster) -> Iterable[tuple[int, int]]:
    for a, b in cluster.links:
        yield a, b
        if a >= 0 and b >= 0:
            yield b, a
