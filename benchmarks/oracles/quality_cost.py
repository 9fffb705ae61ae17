"""The least cost of a mean quality, with true qualities and lengths: a linear relaxation in closed form (docs/oracles.md).

The problem is ECCOS' (arXiv 2502.20576) without its limits of load, its predictions replaced by what is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.oracles.truth import Truth
from policies.lower_hull import Step, lower_hull, steps_of


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points from the cheapest answers to the best: a mean true quality, and the least USD for each request that it costs.
    `requests` are those counted; `left_out` have no candidate of known quality that answers in full within their money cap."""

    points: tuple[tuple[float, float], ...]
    requests: int
    left_out: int


def frontier(truth: Truth, points: int = 21) -> Frontier:
    """The frontier of a workload over a fleet at `points` equal steps of quality."""
    choices = [
        [(each.quality, each.cost_usd) for each in some if each.quality is not None and each.usual]
        for some in truth.attempts
    ]
    counted = [some for some in choices if some]
    left_out = len(choices) - len(counted)
    if not counted:
        return Frontier((), 0, left_out)
    qualities, costs = zip(*mean_frontier(counted), strict=True)
    grid = np.linspace(qualities[0], qualities[-1], points if len(qualities) > 1 else 1)
    points_usd = zip(grid.tolist(), np.interp(grid, qualities, costs).tolist(), strict=True)
    return Frontier(tuple(points_usd), len(counted), left_out)


def mean_frontier(choices: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The least mean cost of every mean quality, from one list of (quality, cost) choices for each request: corners from
    the cheapest choices to the best, where the steps of all requests' hulls are taken, the cheapest quality first."""
    quality = cost = 0.0
    steps: list[Step] = []
    for some in choices:
        hull = lower_hull(some)
        quality += hull[0][0]
        cost += hull[0][1]
        steps += steps_of(hull)
    corners = [(quality / len(choices), cost / len(choices))]
    for step in sorted(steps):
        quality += step.quality
        cost += step.cost
        corners.append((quality / len(choices), cost / len(choices)))
    return corners
