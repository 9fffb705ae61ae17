"""`price`: the least expected price, input price x prompt + output price x E[min(output, cap)].

A cheap model with long answers can cost more than an expensive model with short ones. Options within 1e-9 of the least
price (replicas) count as equal: among them the least expected E2E wins, then instance, then model name. Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.picking import format_s, format_usd, name_of
from router.core.interfaces import Choice, Option
from router.core.types import Request

_SAME = 1e-9


class LeastPrice:
    """See the module's docstring. The score is the expected price in USD."""

    name = "price"
    predicts = True

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        prices: list[float] = []
        for option in options:
            prediction = option.prediction
            cost_usd = None if prediction is None else prediction.cost_usd
            prices.append(inf if cost_usd is None else cost_usd)
        bound_usd = min(prices) * (1 + _SAME)
        index = min(
            (index for index, price_usd in enumerate(prices) if price_usd <= bound_usd),
            key=lambda index: (_e2e_s(options[index]), name_of(options[index])),
        )
        best = options[index]
        reasons: list[str | None] = []
        for at, option in enumerate(options):
            if at == index:
                reasons.append(None)
            elif prices[at] > bound_usd:
                reasons.append(
                    f"more expensive: {_format_price(prices[at])} expected, against {_format_price(prices[index])}"
                )
            else:
                reasons.append(
                    f"same price but not faster: {format_s(_e2e_s(option))} expected, "
                    f"against {format_s(_e2e_s(best))}"
                )
        return Choice(index, [None if price == inf else price for price in prices], reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Nothing to update."""


def _e2e_s(option: Option) -> float:
    prediction = option.prediction
    return inf if prediction is None or prediction.e2e_s_mean is None else prediction.e2e_s_mean


def _format_price(price_usd: float) -> str:
    return format_usd(None if price_usd == inf else price_usd)
