"""`lmetric`: the least product of new prefill tokens and batch size.

LMetric (arXiv 2603.15202) multiplies two indicators and so needs no weights. The first knows the prefix cache: the
prompt tokens that the instance has to prefill, including those queued there. The second is the load: its batch. The
request counts itself in the batch, so an idle instance scores its prefill tokens and not zero. Ties are drawn evenly,
by `request.seed` if it is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.expected import CachedTokens, none_cached
from policies.picking import least_at_random
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class LMetric(Policy):
    """See the module's docstring. `cached_tokens(request, instance)` is the number of prompt tokens that need no
    prefill there. Without it, or for a request without prefix hashes, all tokens count as new."""

    name = "lmetric"
    predicts = False

    def __init__(self, cached_tokens: CachedTokens = none_cached) -> None:
        self._cached_tokens = cached_tokens

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        prompt_tokens = max(request.prompt_tokens, 1)
        scores: list[float] = []
        for option in options:
            instance = option.instance
            new_tokens = float(prompt_tokens + instance.pending_prefill_tokens)
            if request.prefix:
                new_tokens -= min(self._cached_tokens(request, instance.name), prompt_tokens - 1)
            scores.append(new_tokens * (instance.running + 1))
        return least_at_random(request, options, scores, rng, "as much or more prefill work x batch size")
