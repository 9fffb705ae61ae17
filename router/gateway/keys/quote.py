"""What a request may cost, told before it is known who answers it: how much of a key's budgets to hold for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.core.types import Price, Request

#: A usual answer is taken for no shorter than this, however short those of late were.
LEAST_ANSWER_TOKENS = 128


class Tariff(NamedTuple):
    """What candidates of one model ask, and the longest answer that their context allows (None: unknown)."""

    model: str
    price: Price
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Quote:
    """USD for one request. `least_usd`: the prompt and one token of each answer at the cheapest. `first_usd`: what to
    hold at first, a usual answer at the dearest (an answer that is not streamed: the longest). `step_usd`: by how much
    to go on if that does not do. `most_usd`: what it may cost in the end (infinity: nobody knows)."""

    least_usd: float
    first_usd: float
    step_usd: float
    most_usd: float


class Tariffs:
    """The distinct tariffs of each model, remembered until the fleet changes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._fleet: dict[str, Instance] | None = None
        self._known: dict[
            str, tuple[Tariff, ...]
        ] = {}  # by model: clients name any set of them, in any order

    def of(self, request: Request) -> tuple[Tariff, ...]:
        """Those of the models that may serve a request."""
        scheduler = self._scheduler
        if scheduler.instances is not self._fleet:  # replaced as a whole when it changes
            self._fleet = scheduler.instances
            self._known.clear()
        models = request.models + request.fallbacks
        if len(models) == 1:
            return self._of_model(models[0])
        return tuple(tariff for model in models for tariff in self._of_model(model))

    def _of_model(self, model: str) -> tuple[Tariff, ...]:
        found = self._known.get(model)
        if found is None:
            candidates = [instance.candidates[model] for instance in self._scheduler.serving(model)]
            found = self._known[model] = tuple(
                {Tariff(each.model, each.price, each.context_tokens) for each in candidates}
            )
        return found


def quote(
    request: Request, tariffs: Iterable[Tariff], usual_tokens: float, *, whole: bool, hedged: bool
) -> Quote:
    """The quote of one request. `usual_tokens` is what answers took of late; `whole`: the engine answers in one
    piece, so nothing can be held later; `hedged`: its prompt may have to be paid twice."""
    choices = request.choices if request.decodes else 0
    wished = math.inf if request.max_tokens is None else float(request.max_tokens)
    usual_tokens = min(wished, max(usual_tokens, LEAST_ANSWER_TOKENS)) * choices
    least_usd, first_usd, step_usd, most_usd = math.inf, 0.0, 0.0, 0.0
    for model, price, context_tokens in tariffs:
        prompt_usd = price.cost_usd(request.bound_tokens(model), 0)
        token_usd = price.cost_usd(0, 1)
        longest = min(wished, math.inf if context_tokens is None else context_tokens)
        # One more than the longest: an engine that passes its bound is found out by that token.
        longest_usd = token_usd * (longest * choices + 1) if choices and token_usd else 0.0
        usual_usd = token_usd * (usual_tokens + 1) if choices else 0.0
        prompts_usd = prompt_usd * (2 if hedged else 1)
        least_usd = min(least_usd, prompt_usd + token_usd * choices)
        first_usd = max(first_usd, prompts_usd + (longest_usd if whole else min(usual_usd, longest_usd)))
        step_usd = max(step_usd, usual_usd)
        most_usd = max(most_usd, prompts_usd + longest_usd)
    least_usd = 0.0 if least_usd == math.inf else least_usd
    if request.max_cost_usd is not None:
        most_usd = min(most_usd, request.max_cost_usd)
        first_usd = min(first_usd, most_usd)
    return Quote(least_usd, max(first_usd, least_usd), step_usd, max(most_usd, least_usd))
