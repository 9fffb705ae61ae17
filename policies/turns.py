"""Turns among names: whose is next, kept for each of many things that are taken in turn.

What is kept is the (instance, model) taken last, and the next name after it in cyclic order comes next: one that
is unhealthy or full is passed over, and it costs no other one a turn. Ties: none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from policies.picking import name_of
from router.core.interfaces import Option

#: Turns kept for so many things; clients can name any subset of a fleet's models.
_MAX_TURNS = 1024


@dataclass(slots=True)
class Turns:
    """Asking (`next`) changes nothing, `passed` does."""

    _last: dict[Hashable, tuple[str, str]] = field(default_factory=dict)

    def next(self, of: Hashable, options: Sequence[Option]) -> int:
        """Index of the option whose turn it is, of at least one."""
        names = [name_of(option) for option in options]
        last = self._last.get(of)
        following = names if last is None else [name for name in names if name > last]
        return names.index(min(following or names))

    def passed(self, of: Hashable, option: Option) -> None:
        """This option has had its turn."""
        if of not in self._last and len(self._last) >= _MAX_TURNS:
            del self._last[next(iter(self._last))]
        self._last[of] = name_of(option)
