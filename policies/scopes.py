"""The state that a policy keeps for each scope: a key, or the fleet (None)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, ItemsView
from typing import Generic, TypeVar

Key = TypeVar("Key")
State = TypeVar("State")


class Scopes(Generic[Key, State]):
    """States by scope, at most `most` of them: the scope that was used least recently goes first. `new` makes the first
    state of a scope."""

    def __init__(self, new: Callable[[], State], most: int = 256) -> None:
        self._new = new
        self._most = most
        self._states: OrderedDict[Key, State] = OrderedDict()

    def get(self, key: Key) -> State:
        """The state of a scope. The first state of a new scope is not kept."""
        return self._states.get(key) or self._new()

    def use(self, key: Key) -> State:
        """The state of a scope, which is kept from now on."""
        state = self._states[key] = self.get(key)
        self._states.move_to_end(key)
        if len(self._states) > self._most:
            self._states.popitem(last=False)
        return state

    def items(self) -> ItemsView[Key, State]:
        """All scopes and their states."""
        return self._states.items()
