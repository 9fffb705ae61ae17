"""What a cluster's prefix caches should hold of a user's next prompt, estimated from the earlier prompts."""

from __future__ import annotations

_BLOCK_TOKENS = 16


class PooledCache:
    """Prompts of users, each of which begins with all of that user's earlier one; the least recently used are
    dropped. `capacity_tokens` over all replicas: None has no end, 0 finds nothing (which replica a request
    meets is drawn, so most often it is one that has not seen the user). `warm`: every prompt was there before."""

    def __init__(self, capacity_tokens: int | None, *, warm: bool = False) -> None:
        self._capacity_tokens = capacity_tokens
        self._warm = warm
        self._tokens: dict[str, int] = {}  # by user, least recently used first
        self._total_tokens = 0

    def found(self, user: str, prompt_tokens: int) -> int:
        """Tokens of a user's next prompt that need not be computed; at least one always is."""
        held_tokens = prompt_tokens if self._warm else self._tokens.get(user, 0)
        return max(0, min(held_tokens, prompt_tokens - 1)) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def add(self, user: str, prompt_tokens: int) -> None:
        """A prompt of that user was served."""
        before = self._tokens.pop(user, 0)
        self._tokens[user] = max(before, prompt_tokens)
        self._total_tokens += self._tokens[user] - before
        while self._capacity_tokens is not None and self._total_tokens > self._capacity_tokens:
            oldest = next(iter(self._tokens))
            self._total_tokens -= self._tokens.pop(oldest)
