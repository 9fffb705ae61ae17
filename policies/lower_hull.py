"""The lower convex hull of (quality, cost) points: what each step of quality costs at the least.

At a price p of quality the best choice is the one of least cost - p x quality. As p rises from zero, the best choice
moves along this hull from the cheapest point to the one of highest quality (the linear multiple-choice knapsack, Sinha
and Zoltners 1979).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

#: Qualities closer than this are equal. It keeps the price of a step finite.
_SAME_QUALITY = 1e-12


class Step(NamedTuple):
    """The difference between two neighbouring points of a hull. `price` is cost / quality."""

    price: float
    quality: float
    cost: float


def lower_hull(choices: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (quality, cost) points that are the best choice at some price of quality, of at least one point.

    The first is the cheapest point (among equally cheap ones the best), the last the one of highest quality. Quality,
    cost and the price of the steps rise from point to point.
    """
    hull: list[tuple[float, float]] = []
    for quality, cost in sorted(choices, key=lambda choice: (choice[1], -choice[0])):
        if hull and quality <= hull[-1][0] + _SAME_QUALITY:
            continue  # more expensive and not better
        while len(hull) > 1:
            (q1, c1), (q2, c2) = hull[-2:]
            if (c2 - c1) * (quality - q2) < (cost - c2) * (q2 - q1):
                break
            hull.pop()
        hull.append((quality, cost))
    return hull


def steps_of(hull: Sequence[tuple[float, float]]) -> Iterator[Step]:
    """The steps of a hull, in rising order of price."""
    for (q1, c1), (q2, c2) in pairwise(hull):
        yield Step((c2 - c1) / (q2 - q1), q2 - q1, c2 - c1)
