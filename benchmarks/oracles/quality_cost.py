"""The least cost of a mean quality, with true qualities and lengths: a linear relaxation.

    minimise  sum c_ij x_ij    over x_ij in [0, 1], sum_j x_ij = 1 for each request i
    subject to  sum q_ij x_ij >= alpha N,   and maybe  sum_i x_ij over a group of candidates <= L_group

Requests are ECCOS' problem (arXiv 2502.20576) with the predictions replaced by what is true. Without the
group limits one constraint couples the requests, so the optimum for every alpha at once is known in closed
form (the linear multiple-choice knapsack, Sinha and Zoltners 1979): each request starts at its cheapest
candidate and climbs the lower convex hull of its (quality, cost) points, the steepest gain of quality for
money over all requests first. With group limits HiGHS solves each alpha.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from benchmarks.oracles.solver import solve
from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.workloads.format import WorkloadError
from policies.lower_hull import Step, lower_hull, steps_of


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """`cost_usd_per_request` is the least that a mean true quality of `quality` costs."""

    quality: float
    cost_usd_per_request: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points from the cheapest answers to the best. `requests` are those counted; `left_out` have no candidate
    of known quality that answers in full within their money cap."""

    points: tuple[FrontierPoint, ...]
    requests: int
    left_out: int


def frontier(truth: Truth, points: int = 21, limits: Mapping[str, float] | None = None) -> Frontier:
    """The frontier of a workload over a fleet at `points` equal steps of quality. `limits` are the greatest
    shares of requests by instance or model name, in [0, 1]. Raises WorkloadError for an unknown name in
    `limits`, and for limits that cannot hold all requests."""
    choices = [[each for each in some if each.quality is not None and each.usual] for some in truth.attempts]
    counted = [some for some in choices if some]
    left_out = len(choices) - len(counted)
    if not counted:
        return Frontier((), 0, left_out)
    if limits:
        found = _limited(counted, points, limits, truth.fleet.names)
    else:
        found = _parametric([[(_quality(each), each.cost_usd) for each in some] for some in counted], points)
    return Frontier(tuple(found), len(counted), left_out)


def _quality(attempt: KnownAttempt) -> float:
    assert attempt.quality is not None  # noqa: S101 (the caller has left the others out)
    return attempt.quality


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


def _parametric(choices: Sequence[Sequence[tuple[float, float]]], points: int) -> list[FrontierPoint]:
    """The frontier of (quality, cost) choices, exactly."""
    qualities, costs = zip(*mean_frontier(choices), strict=True)
    grid = np.linspace(qualities[0], qualities[-1], points if len(qualities) > 1 else 1)
    return [
        FrontierPoint(float(at), float(usd))
        for at, usd in zip(grid, np.interp(grid, qualities, costs), strict=True)
    ]


def _limited(
    choices: Sequence[Sequence[KnownAttempt]],
    points: int,
    limits: Mapping[str, float],
    instances: Sequence[str],
) -> list[FrontierPoint]:
    """The frontier under limits, by HiGHS for each point."""
    flat = [(row, each) for row, some in enumerate(choices) for each in some]
    known = {*instances, *(each.model for _, each in flat)}
    unknown = sorted(set(limits) - known)
    if unknown:
        raise WorkloadError(f"limit for {unknown[0]!r}: no instance or model of that name takes requests")
    count = len(choices)
    columns = np.arange(len(flat))
    ones = csr_array((np.ones(len(flat)), ([row for row, _ in flat], columns)), shape=(count, len(flat)))
    quality = np.array([_quality(each) for _, each in flat]) / count
    cost = np.array([each.cost_usd for _, each in flat]) / count
    groups = [[name in (instances[each.instance], each.model) for _, each in flat] for name in limits]
    held = csr_array(np.array(groups, dtype=float) / count)
    most = np.array(list(limits.values()))
    whole: dict[str, Any] = {"A_eq": ones, "b_eq": np.ones(count), "bounds": (0, 1)}

    def least(objective: Any, at_least: float | None) -> Any:
        rows = held if at_least is None else vstack([held, csr_array(-quality[None, :])])
        bounds = most if at_least is None else np.append(most, -at_least)
        found = solve(c=objective, A_ub=rows, b_ub=bounds, **whole)
        return None if found is None else found.x

    best = least(-quality, None)
    if best is None:
        raise WorkloadError("the limits leave no place for some requests")
    # The best of the cheapest and the cheapest of the best: the second target bounds the first.
    cheapest = least(cost - 1e-9 * quality * max(1e-12, float(cost.max())), None)
    low, high = float(quality @ cheapest), float(quality @ best)
    found = []
    for alpha in np.linspace(low, high, points if high - low > 1e-12 else 1):
        x = least(cost, float(alpha) - 1e-12 * (1 + abs(high)))
        if x is None:  # the best itself, by a rounding error
            x = best
        found.append(FrontierPoint(float(alpha), float(cost @ x)))
    return found
