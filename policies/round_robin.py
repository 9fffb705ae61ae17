"""`round_robin`: the options take turns in the order of their names. The usual default of load balancers.

Turns are kept for each set of models apart, so requests for one model do not skip turns of another. What
is kept is the (instance, model) taken last, and the next name after it in cyclic order is chosen: an
instance that is unhealthy or full is passed over, and it costs no other one a turn. Deterministic: a
request's seed changes nothing. Ties: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.picking import name_of
from router.core.interfaces import Choice, Option
from router.core.types import Request

#: Turns kept for so many sets of models; clients can name any subset of a fleet's models.
_MAX_TURNS = 1024


class RoundRobin:
    """See the module's docstring."""

    name = "round_robin"
    predicts = False

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], tuple[str, str]] = {}

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        names = [name_of(option) for option in options]
        last = self._last.get(self._turn(request, options[0].candidate.model))
        following = names if last is None else [name for name in names if name > last]
        index = names.index(min(following or names))
        size = len(names)
        reasons: list[str | None] = ["not its turn"] * size
        reasons[index] = None
        return Choice(index, [None] * size, reasons)

    def taken(self, request: Request, option: Option) -> None:
        """The turn passes on."""
        turns = self._last
        turn = self._turn(request, option.candidate.model)
        if turn not in turns and len(turns) >= _MAX_TURNS:
            del turns[next(iter(turns))]
        turns[turn] = name_of(option)

    @staticmethod
    def _turn(request: Request, model: str) -> tuple[str, ...]:
        """Whose turns are counted: the models the request may have, or the fallback it came down to."""
        return request.models if model in request.models else (model,)
