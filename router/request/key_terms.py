"""What a client's key fixes for its requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class KeyTerms:
    """A client key's default policy and caps. One object for one key: it is compared by identity.

    `locked` takes the choice of the policy from the client (the key's, else the model's or the server's
    default holds). `max_cost_usd`, `min_quality` and `max_priority` are caps that a client may tighten. `models` are
    the fleet's names that it may use (None: all): for it there are no others. `owner` is the operator's key above it, or
    itself; `prefix_salt` keeps its prompts' hashes apart from those of other keys, `cache_salt` its prompts in engines' caches.
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
