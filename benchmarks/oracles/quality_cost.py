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
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from benchmarks.oracles.solver import require, solve
from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.workloads.format import WorkloadError


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """`cost_usd_per_request` is the least that a mean true quality of `quality` costs."""

    quality: float
    cost_usd_per_request: float

    def as_dict(self) -> dict[str, float]:
        return {"quality": self.quality, "cost_usd_per_request": self.cost_usd_per_request}


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points from the cheapest answers to the best. `requests` are those counted; `left_out` have no candidate
    of known quality that answers in full within their money cap."""

    points: tuple[FrontierPoint, ...]
    requests: int
    left_out: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "points": [point.as_dict() for point in self.points],
            "requests": self.requests,
            "left_out": self.left_out,
        }


def frontier(truth: Truth, points: int = 21, limits: Mapping[str, float] | None = None) -> Frontier:
    """The frontier of a workload over a fleet at `points` equal steps of quality. `limits` are the greatest
    shares of requests by instance or model name, in [0, 1]. Raises WorkloadError for an unknown name in
    `limits`, for limits that cannot hold all requests, and without scipy (needed for limits only)."""
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


def _parametric(choices: Sequence[Sequence[tuple[float, float]]], points: int) -> list[FrontierPoint]:
    """The frontier of (quality, cost) choices, exactly."""
    quality = cost = 0.0
    steps: list[tuple[float, float, float]] = []  # cost per quality, quality, cost
    for some in choices:
        hull = lower_hull(some)
        quality += hull[0][0]
        cost += hull[0][1]
        steps += [((c2 - c1) / (q2 - q1), q2 - q1, c2 - c1) for (q1, c1), (q2, c2) in pairwise(hull)]
    steps.sort()
    count = len(choices)
    qualities = np.array(list(accumulate((step[1] for step in steps), initial=quality))) / count
    costs = np.array(list(accumulate((step[2] for step in steps), initial=cost))) / count
    grid = np.linspace(qualities[0], qualities[-1], points if steps else 1)
    return [
        FrontierPoint(float(at), float(usd))
        for at, usd in zip(grid, np.interp(grid, qualities, costs), strict=True)
    ]


def lower_hull(choices: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The part of the lower convex hull of (quality, cost) points from the cheapest (the best of those) to the
    best (the cheapest of those): rising quality, rising cost, rising cost for each bit of quality."""
    hull: list[tuple[float, float]] = []
    for quality, cost in sorted(choices, key=lambda choice: (choice[1], -choice[0])):
        if hull and quality <= hull[-1][0]:
            continue  # dearer and no better
        while len(hull) > 1:
            (q1, c1), (q2, c2) = hull[-2:]
            if (c2 - c1) * (quality - q2) < (cost - c2) * (q2 - q1):
                break
            hull.pop()
        hull.append((quality, cost))
    return hull


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
    require()
    from scipy.sparse import csr_array, vstack

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
