"""Counts a prompt's tokens exactly, where the estimate is not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from router.core.errors import UpstreamError
from router.core.interfaces import COUNTED_FIELDS, Backend, Call
from router.core.types import Candidate, Request
from router.gateway.fleet.served import ServedFleet
from router.gateway.runner import Runner
from router.request.prompt import IMAGE_TOKENS, PromptFacts, unseen_bytes

#: No text has eight times more or fewer tokens than the estimate.
_ESTIMATE_ERROR = 8


class TokenCounter:
    """Uses a configured tokenizer, else a vLLM's own where the exact count decides."""

    def __init__(self, runner: Runner, fleet: ServedFleet) -> None:
        self._runner = runner
        self._fleet = fleet

    def may_count(self, request: Request) -> bool:
        """Whether `count` may change anything."""
        return bool(self._fleet.tokenizers) or self._decides(request)

    def _decides(self, request: Request) -> bool:
        """Whether the exact count may decide: for a money cap, or for a prompt that may not fit a context."""
        least = self._fleet.rules.least_context_tokens
        return request.max_cost_usd is not None or (
            least is not None and request.prompt_tokens_bound >= least
        )

    async def count(self, request: Request, api: str, body: Mapping[str, Any], facts: PromptFacts) -> None:
        """Set the token count of a request's prompt. The count decides for a money cap, and for a prompt that may not
        fit a context. Without an answer the estimate and its bound stay."""
        for model in request.models:
            tokenizer = self._fleet.tokenizers.get(model)
            if tokenizer is not None:
                await asyncio.sleep(0)  # from here on a task is needed
                self._set(request, facts, model, *await tokenizer.count(api, body, facts))
                return
        if request.longest_prompt_tokens is not None:
            return  # several prompts: each would need a call
        if not self._decides(request):
            return
        engine = self._engine_for(request)
        if engine is None:
            return
        backend, candidate = engine
        await asyncio.sleep(0)  # from here on a task is needed
        try:
            async with asyncio.timeout(self._fleet.config.limits.connect_timeout_s):
                count = await backend.count_tokens(Call(api, body, candidate, request.id))
        except (UpstreamError, TimeoutError):
            return
        if count is not None:
            # The engine counts one token for each image, and none for members that it ignores.
            usual, most = facts.media * IMAGE_TOKENS, facts.media_bound
            bound = count + most + unseen_bytes(body, COUNTED_FIELDS)
            self._set(request, facts, candidate.model, count + usual, bound)

    @staticmethod
    def _set(request: Request, facts: PromptFacts, model: str, tokens: int, bound: int) -> None:
        """Use a count by one model's tokenizer. Another model's tokenizer may count more."""
        if (most := facts.most_tokens) is not None:
            tokens, bound = min(tokens, most), min(bound, most)
        request.prompt_tokens = tokens
        request.counted = model, bound
        if len({*request.models, *request.fallbacks}) == 1:
            request.prompt_tokens_bound = bound

    def _engine_for(self, request: Request) -> tuple[Backend, Candidate] | None:
        """A live engine that can count the tokens; None if no candidate's decision depends on the count."""
        found = None
        decides = request.max_cost_usd is not None
        tokens, bound = request.prompt_tokens, request.prompt_tokens_bound
        for model in (*request.models, *request.fallbacks):
            for instance in self._runner.scheduler.fleet.serving(model):
                candidate = instance.candidates[model]
                context = candidate.context_tokens
                if context is not None and tokens / _ESTIMATE_ERROR < context <= bound:
                    decides = True
                if found is None and instance.healthy and not instance.draining and instance.tokenizes:
                    found = self._fleet.backends[instance.name], candidate
        return found if decides else None
