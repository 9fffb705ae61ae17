"""The cheapest instances of several kinds that carry a rate together: a small integer program.

minimise sum(price * number) subject to sum(rate * number) >= demand and bounds on each number. It is solved exactly by
enumeration: of all kinds but one each number is tried, best rate for the money first, and a branch is left where parts of
instances would already cost more than the best found. Several mixes of one price: the one with the largest rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: A demand counts as carried if no more than this is missing.
_CARRIED = 1e-9
#: Sums of the same prices may differ by this share.
_ROUNDING = 1e-9


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

    def least_price(place: int, missing: float) -> float:
        """No instances of the kinds from this place on carry what is missing for less; infinite if they cannot. Parts of an
        instance count."""
        others = [kinds[i] for i in order[place:]]
        price = sum(kind.least * kind.price for kind in others)
        missing -= sum(kind.least * kind.rate_per_s for kind in others)
        for kind in others:
            if missing <= 0:
                break
            part = min(missing / kind.rate_per_s, kind.most - kind.least)
            price += part * kind.price
            missing -= part * kind.rate_per_s
        return price if missing <= _CARRIED else math.inf

    def search(place: int, missing: float, price: float) -> None:
        nonlocal best
        if place == len(order):
            if missing <= _CARRIED:
                found = (price, missing, tuple(chosen))
                best = found if best is None else min(best, found)
            return
        kind = kinds[order[place]]
        others = sum(kinds[i].least * kinds[i].rate_per_s for i in order[place + 1 :])
        enough = math.ceil(max(0.0, missing) / kind.rate_per_s - 1e-9)
        for number in range(min(max(enough, kind.least), kind.most), kind.least - 1, -1):
            left, paid = missing - number * kind.rate_per_s, price + number * kind.price
            least = paid + least_price(place + 1, left)
            if least == math.inf:
                return  # fewer of this kind carry even less
            if best is None or least <= best[0] * (1 + _ROUNDING):
                chosen[order[place]] = number
                search(place + 1, left, paid)
            elif left > others:
                return  # more of the other kinds in place of this one costs more

    search(0, demand_per_s, 0.0)
    return tuple(kind.most for kind in kinds) if best is None else best[2]
