"""`random`: every option with the same probability. The simplest baseline.

There are no ties. `request.seed`, if set, decides the draw over the options ordered by instance and model name;
otherwise the scheduler's generator does.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.picking import by_name
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class RandomChoice(Policy):
    """See the module's docstring."""

    name = "random"
    predicts = False

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        size = len(options)
        if request.seed is None:
            index = int(rng.random() * size)
        else:
            index = by_name(options)[int(Random(request.seed).random() * size)]
        reasons: list[str | None] = ["not drawn"] * size
        reasons[index] = None
        return Choice(index, [None] * size, reasons, 1.0 / size)
