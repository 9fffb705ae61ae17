"""The part of a conversation in an instance's prefix cache beyond the tokens that prefix hashes cover.

Hashes cover only a prompt's first PREFIX_TOKENS tokens. An instance has the prompt and the answer of a session's
earlier request, with which the session's next prompt begins. Each instance has one bounded least-recently-used map.
"""

from __future__ import annotations

from collections import OrderedDict


class SessionIndex:
    """Tokens of each session's last request by instance, for at most `max_sessions` sessions each."""

    def __init__(self, max_sessions: int = 4096) -> None:
        self.max_sessions = max_sessions
        self._held: dict[str, OrderedDict[str, float]] = {}

    def held_tokens(self, instance: str, session: str) -> float:
        """Tokens of the session's last request there, 0 if there was none. Changes nothing."""
        held = self._held.get(instance)
        return 0.0 if held is None else held.get(session, 0.0)

    def add(self, instance: str, session: str, tokens: float) -> None:
        """The instance has served a request of the session with this many tokens of prompt and answer."""
        held = self._held.setdefault(instance, OrderedDict())
        held[session] = tokens
        held.move_to_end(session)
        if len(held) > self.max_sessions:
            held.popitem(last=False)

    def forget(self, instance: str) -> None:
        """The instance has left the fleet or restarted."""
        self._held.pop(instance, None)
