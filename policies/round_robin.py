"""`round_robin`: the options in turn, ordered by name. The usual default of load balancers.

Each set of models has a position of its own (`policies.round_robin_cursor`), so requests for one model do not skip
turns of another. Deterministic: `request.seed` changes nothing. There are no ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.round_robin_cursor import RoundRobinCursor
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class RoundRobin(Policy):
    """See the module's docstring."""

    name = "round_robin"
    predicts = False

    def __init__(self) -> None:
        self.cursor = RoundRobinCursor()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        index = self.cursor.next_index(_group(request, options[0].candidate.model), options)
        size = len(options)
        reasons: list[str | None] = ["not its turn"] * size
        reasons[index] = None
        return Choice(index, [None] * size, reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Advance the position of the request's models."""
        option = options[choice.index]
        self.cursor.advance(_group(request, option.candidate.model), option)


def _group(request: Request, model: str) -> tuple[str, ...]:
    """The models that the request allows, or, if its options are of a fallback, that model."""
    if len(request.models) == 1 or model not in request.models:
        return (model,)
    return tuple(sorted(request.models))
