"""`lmetric`: the least product of new prefill tokens and batch size.

LMetric (arXiv 2603.15202): one indicator knows the prefix cache (prompt tokens that the instance would
have to prefill, those queued there before included), the other the load (its batch); their product needs
no weights. The request counts itself in the batch, so that an idle instance scores its prefill tokens
and not zero. Ties are drawn evenly (by the request's seed when it has one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from policies.picking import least_at_random
from router.core.interfaces import Choice, Option
from router.core.types import Request


class LMetric:
    """See the module's docstring. `cached_tokens(request, instance)` are prompt tokens that need no
    prefill there; without it, or for a request without prefix hashes, all are new."""

    name = "lmetric"
    predicts = False

    def __init__(self, cached_tokens: Callable[[Request, str], float] | None = None) -> None:
        self._cached_tokens = cached_tokens

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        prompt_tokens = max(request.prompt_tokens, 1)
        cached_tokens = self._cached_tokens if request.prefix else None
        scores: list[float] = []
        for option in options:
            instance = option.instance
            new_tokens = float(prompt_tokens + instance.pending_prefill_tokens)
            if cached_tokens is not None:
                new_tokens -= min(cached_tokens(request, instance.name), prompt_tokens - 1)
            scores.append(new_tokens * (instance.running + 1))
        return least_at_random(request, options, scores, rng, "as much or more prefill work x batch size")

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Nothing to count."""
