"""Turns among names: whose is next, kept for each of many things that are taken in turn.

What is kept is the (instance, model) taken last, and the next name after it in cyclic order comes next: one that
is unhealthy or full is passed over, and it costs no other one a turn. Ties: none.

Several replicas of the router go on from each other's turns: each tells what it has passed on (`news`) and takes up
what the others have (`hear`). Two that pass a turn on before they hear of each other take the same one; over many
turns each name still has as many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.picking import name_of
from router.core.interfaces import Option

#: Turns kept for so many things; clients can name any subset of a fleet's models.
_MAX_TURNS = 1024

#: What is taken in turn: a model, or the models that a request may have.
Of = str | tuple[str, ...]


@dataclass(slots=True)
class Turns:
    """Asking (`next`) changes nothing, `passed` does. Implements `router.core.interfaces.SharedTurns`."""

    _last: dict[Of, tuple[str, str]] = field(default_factory=dict)
    _news: set[Of] = field(default_factory=set)  # of these, passed on here since they were last told

    def next(self, of: Of, options: Sequence[Option]) -> int:
        """Index of the option whose turn it is, of at least one."""
        names = [name_of(option) for option in options]
        last = self._last.get(of)
        following = names if last is None else [name for name in names if name > last]
        return names.index(min(following or names))

    def passed(self, of: Of, option: Option) -> None:
        """This option has had its turn."""
        self._keep(of, name_of(option))
        self._news.add(of)

    def news(self) -> dict[str, tuple[str, str]]:
        """Who had the last turn, by what is taken in turn (as text), of all passed on here since this was last asked."""
        told = {json.dumps(of): self._last[of] for of in self._news}
        self._news.clear()
        return told

    def hear(self, turns: Mapping[str, tuple[str, str]]) -> None:
        """Go on from these. Text that no `news` has made is ignored."""
        for text, last in turns.items():
            of = _read(text)
            if of is not None:
                self._keep(of, last)

    def _keep(self, of: Of, last: tuple[str, str]) -> None:
        if of not in self._last and len(self._last) >= _MAX_TURNS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._news.discard(oldest)
        self._last[of] = last


def _read(text: str) -> Of | None:
    try:
        of = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(of, str):
        return of
    if isinstance(of, list) and all(isinstance(each, str) for each in of):
        return tuple(of)
    return None
