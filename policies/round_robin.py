"""`round_robin`: the options take turns in the order of their names. The usual default of load balancers.

Turns (`policies.turns`) are kept for each set of models apart, so requests for one model do not skip turns of
another. Deterministic: a request's seed changes nothing. Ties: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request


class RoundRobin:
    """See the module's docstring."""

    name = "round_robin"
    predicts = False

    def __init__(self) -> None:
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        index = self.turns.next(_turn(request, options[0].candidate.model), options)
        size = len(options)
        reasons: list[str | None] = ["not its turn"] * size
        reasons[index] = None
        return Choice(index, [None] * size, reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The turn passes on."""
        option = options[choice.index]
        self.turns.passed(_turn(request, option.candidate.model), option)


def _turn(request: Request, model: str) -> tuple[str, ...]:
    """Whose turns are counted: the models the request may have, or the fallback it came down to."""
    if len(request.models) == 1 or model not in request.models:
        return (model,)
    return tuple(sorted(request.models))
