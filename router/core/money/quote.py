"""The possible cost of a request before its candidate is known, which determines the reservation in its key's budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from router.core.types import Price, Request

#: The least length of a usual answer, even if recent answers were shorter.
LEAST_ANSWER_TOKENS = 128


class Tariff(NamedTuple):
    """The price of one model's candidates, and the longest answer that their context allows (None: unknown)."""

    model: str
    price: Price
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Quote:
    """USD for one request. `least_usd`: the prompt and one token of each choice at the cheapest candidate. `first_usd`:
    the first reservation, for a usual answer at the most expensive candidate. `step_usd`: the next reservation if that
    is not enough. `most_usd`: the highest possible cost (infinity: unknown)."""

    least_usd: float
    first_usd: float
    step_usd: float
    most_usd: float


def quote(request: Request, tariffs: Iterable[Tariff], usual_tokens: float, *, hedged: bool) -> Quote:
    """The quote of one request. `usual_tokens` is the recent mean of answers. `hedged`: its prompt may have to be paid
    twice. For a non-streaming answer nothing can be reserved later, so the first reservation covers its longest answer.
    """
    choices = request.choices if request.decodes else 0
    wanted = math.inf if request.max_tokens is None else float(request.max_tokens)
    usual_tokens = min(wanted, max(usual_tokens, LEAST_ANSWER_TOKENS)) * choices
    least_usd, first_usd, step_usd, most_usd = math.inf, 0.0, 0.0, 0.0
    for model, price, context_tokens in tariffs:
        prompt_usd = price.cost_usd(request.bound_tokens(model), 0)
        token_usd = price.cost_usd(0, 1)
        longest = min(wanted, math.inf if context_tokens is None else context_tokens)
        # One token more than the longest answer: it shows that an engine ignores its bound, and it is billed.
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
