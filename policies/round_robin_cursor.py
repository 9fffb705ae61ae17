"""A round-robin position for each group of options, shared between replicas of the router.

For each group (a model, or a set of models) the cursor stores the (instance, model) taken last. The next name after it
in cyclic order comes next. An option that is unhealthy or full is skipped, and no other option loses a turn by that.

Replicas exchange positions: `drain_outgoing` returns what advanced here, `receive` continues from what advanced
elsewhere. Two replicas that advance before they exchange take the same option; over many requests every option still
gets the same share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.picking import name_of
from router.core.interfaces import Option

#: Clients can name any subset of a fleet's models, so the number of groups is bounded.
_MAX_GROUPS = 1024

#: What has a position of its own: a model, or the models that a request allows.
Group = str | tuple[str, ...]


@dataclass(slots=True)
class RoundRobinCursor:
    """Implements `router.core.interfaces.SharedCursor`."""

    _last: dict[Group, tuple[str, str]] = field(default_factory=dict)
    _outgoing: set[Group] = field(default_factory=set)  # advanced here since the last drain

    def next_index(self, group: Group, options: Sequence[Option]) -> int:
        """Index of the option that is next, of at least one. Changes nothing."""
        names = [name_of(option) for option in options]
        last = self._last.get(group)
        following = names if last is None else [name for name in names if name > last]
        return names.index(min(following or names))

    def advance(self, group: Group, option: Option) -> None:
        """`option` was taken."""
        self._store(group, name_of(option))
        self._outgoing.add(group)

    def drain_outgoing(self) -> dict[str, tuple[str, str]]:
        """The (instance, model) taken last, by group as JSON text, for all groups that advanced here since the last
        call."""
        if not self._outgoing:
            return {}
        outgoing = {json.dumps(group): self._last[group] for group in self._outgoing}
        self._outgoing.clear()
        return outgoing

    def receive(self, positions: Mapping[str, tuple[str, str]]) -> None:
        """Continue from other replicas' positions. Ignores a group that `drain_outgoing` cannot have written."""
        for text, last in positions.items():
            group = _parse(text)
            if group is not None:
                self._store(group, last)

    def _store(self, group: Group, last: tuple[str, str]) -> None:
        if group not in self._last and len(self._last) >= _MAX_GROUPS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._outgoing.discard(oldest)
        self._last[group] = last


def _parse(text: str) -> Group | None:
    try:
        group = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(group, str):
        return group
    if isinstance(group, list) and all(isinstance(model, str) for model in group):
        return tuple(group)
    return None
