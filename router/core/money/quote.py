"""What a request may cost, before it is known which candidate answers it: how much of its key's budgets to reserve."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from router.core.types import Price, Request

#: A usual answer is taken for no shorter than this, however short those of late were.
LEAST_ANSWER_TOKENS = 128


class Tariff(NamedTuple):
    """What candidates of one model charge, and the longest answer that their context allows (None: unknown)."""

    model: str
    price: Price
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Quote:
    """USD for one request. `least_usd`: the prompt and one token of each choice at the cheapest candidate. `first_usd`: what
    to reserve at first, a usual answer at the most expensive one. `step_usd`: what to add if that is not enough. `most_usd`: the
    highest cost in the end (infinity: unknown)."""

    least_usd: float
    first_usd: float
    step_usd: float
    most_usd: float


def quote(request: Request, tariffs: Iterable[Tariff], usual_tokens: float, *, hedged: bool) -> Quote:
    """The quote of one request. `usual_tokens` is the recent mean of answers; `hedged`: its prompt may have to be paid
    twice. Of an answer in one piece nothing can be reserved later, so its longest is quoted at first."""
    choices = request.choices if request.decodes else 0
    wanted = math.inf if request.max_tokens is None else float(request.max_tokens)
    usual_tokens = min(wanted, max(usual_tokens, LEAST_ANSWER_TOKENS)) * choices
    least_usd, first_usd, step_usd, most_usd = math.inf, 0.0, 0.0, 0.0
    for model, price, context_tokens in tariffs:
        prompt_usd = price.cost_usd(request.bound_tokens(model), 0)
        token_usd = price.cost_usd(0, 1)
        longest = min(wanted, math.inf if context_tokens is None else context_tokens)
        # One more than the longest: an engine that passes its bound is found out by that token.
        longest_usd = token_usd * (longest * choices + 1) if choices and token_usd else 0.0
        usual_usd = token_usd * (usual_tokens + 1) if choices else 0.0
        prompts_usd = prompt_usd * (2 if hedged else 1)
        least_usd = min(least_usd, prompt_usd + token_usd * choices)
        first_usd = max(
            first_usd, prompts_usd + (min(usual_usd, longest_usd) if request.engine_streams else longest_usd)
        )
        step_usd = max(step_usd, usual_usd)
        most_usd = max(most_usd, prompts_usd + longest_usd)
    least_usd = 0.0 if least_usd == math.inf else least_usd
    if request.max_cost_usd is not None:
        most_usd = min(most_usd, request.max_cost_usd)
        first_usd = min(first_usd, most_usd)
    return Quote(least_usd, max(first_usd, least_usd), step_usd, max(most_usd, least_usd))
