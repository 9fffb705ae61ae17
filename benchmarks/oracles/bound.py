"""An upper bound on the requests that any schedule whatever can serve within their SLOs.

A linear program (`program`) over x_ij, the share of request i that candidate j serves in time, by the least `work` of each.
docs/oracles.md has the program, its proof, and what is left out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from benchmarks.oracles.program import Program
from benchmarks.oracles.truth import Truth
from benchmarks.oracles.work import LeastWork


@dataclass(frozen=True, slots=True)
class UpperBound:
    """At most `met` requests keep their SLO, of `offered` that have one and that some candidate can take.
    `wanted` is, by request and then instance, the share that the linear program gives it: a guide for a
    search, of no meaning for the bound. `parts` is how many pieces the workload was cut into."""

    met: int
    offered: int
    wanted: tuple[dict[int, float], ...]
    parts: int

    @property
    def attainment(self) -> float | None:
        return self.met / self.offered if self.offered else None


def goodput_upper_bound(truth: Truth, *, part_requests: int = 20_000, levels: int = 6) -> UpperBound:
    """The bound for a workload over a fleet. `levels` is how many times windows are halved at most; a part
    has at most `part_requests` requests."""
    work = LeastWork(truth)
    requests = range(len(truth.arrivals))
    offered = sum(truth.offered(index) for index in requests)
    order = sorted(requests, key=lambda index: truth.arrivals[index].request.arrived_at)
    parts = max(1, -(-len(order) // part_requests))
    wanted: list[dict[int, float]] = [{} for _ in requests]
    total = 0.0
    for part in range(parts):
        chosen = order[len(order) * part // parts : len(order) * (part + 1) // parts]
        solution = Program(truth.instances, {index: work.of(index) for index in chosen}, levels).solve()
        total += solution.bound
        for index, shares in solution.wanted.items():
            wanted[index] = shares
    # A whole number of requests; the margin is for the rounding of sums.
    return UpperBound(min(offered, floor(total + 1e-6)), offered, tuple(wanted), parts)
