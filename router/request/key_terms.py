"""The terms of a client's key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class KeyTerms:
    """A client key's default policy and caps. There is one object for each key, compared by identity.

    `locked`: clients cannot choose the policy (the key's applies, else the model's or the server's default).
    `max_cost_usd`, `min_quality` and `max_priority` are caps that a client may tighten. `models` are the fleet's models that
    the key may use (None: all); others do not exist for it. `owner` is the operator's key above it, or itself. `prefix_salt`
    separates its prompt hashes from those of other keys, `cache_salt` its prompts in engines' caches.
    """

    name: str | None = None
    policy: str | None = None
    locked: bool = False
    max_cost_usd: float | None = None
    min_quality: float | None = None
    max_priority: int | None = None
    models: frozenset[str] | None = None
    owner: str | None = None
    prefix_salt: int = 0
    cache_salt: str | None = None
