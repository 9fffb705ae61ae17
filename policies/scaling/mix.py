"""The cheapest instances of several kinds that carry a rate together: a small integer program.

minimise sum(price * number) subject to sum(rate * number) >= demand and bounds on each number. It is solved exactly by
enumeration: of all kinds but one each number is tried, best rate for the money first, and a branch that costs more than
the best found is left. Several mixes of one price: the one with the largest rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """`price` for an hour, and the rate that one instance carries; between `least` and `most` of them."""

    price: float
    rate_per_s: float
    least: int
    most: int


def cheapest(kinds: Sequence[Kind], demand_per_s: float) -> tuple[int, ...]:
    """The number of each kind; the most of each if even these do not carry the demand."""
    order = sorted(range(len(kinds)), key=lambda i: (kinds[i].price / kinds[i].rate_per_s, i))
    best: tuple[float, float, tuple[int, ...]] | None = None
    chosen = [kind.most for kind in kinds]

    def search(place: int, missing: float, price: float) -> None:
        nonlocal best
        if best is not None and price > best[0]:
            return
        if place == len(order):
            if missing <= 1e-9:
                found = (price, missing, tuple(chosen))
                best = found if best is None else min(best, found)
            return
        kind = kinds[order[place]]
        enough = math.ceil(max(0.0, missing) / kind.rate_per_s - 1e-9)
        for number in range(min(max(enough, kind.least), kind.most), kind.least - 1, -1):
            chosen[order[place]] = number
            search(place + 1, missing - number * kind.rate_per_s, price + number * kind.price)

    search(0, demand_per_s, 0.0)
    return tuple(kind.most for kind in kinds) if best is None else best[2]
