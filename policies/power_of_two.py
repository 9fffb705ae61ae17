"""`power_of_two`: draws two different options and takes the one with fewer sequences.

Mitzenmacher, "The power of two choices in randomized load balancing" (IEEE TPDS 12(10), 2001). On a tie the one drawn
first wins. The propensity is exact: an option is taken if the other one is busier, or as busy and drawn second.
`request.seed`, if set, decides the draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.picking import by_name
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class PowerOfTwo(Policy):
    """See the module's docstring. The score is the number of sequences, for the two options drawn."""

    name = "power_of_two"
    predicts = False

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        size = len(options)
        if size == 1:
            return Choice(0, [options[0].instance.running], [None])
        draw = rng if request.seed is None else Random(request.seed)
        first = int(draw.random() * size)
        second = int(draw.random() * (size - 1))
        if second >= first:
            second += 1
        if request.seed is not None:
            order = by_name(options)
            first, second = order[first], order[second]
        loads = [option.instance.running for option in options]
        index = second if loads[second] < loads[first] else first
        wins = sum(other > loads[index] for other in loads) + (loads.count(loads[index]) - 1) / 2
        scores: list[float | None] = [None] * size
        scores[first], scores[second] = loads[first], loads[second]
        reasons: list[str | None] = ["not drawn"] * size
        reasons[first] = reasons[second] = "drawn, but not less busy than the other one"
        reasons[index] = None
        return Choice(index, scores, reasons, wins / (size * (size - 1) / 2))
