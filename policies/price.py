"""`price`: the least expected price, input price x prompt + output price x E[min(output, cap)].

Headway's contract; a cheap chatty model can cost more than a dear terse one. Options within one part in a
thousand million cost the same (replicas do): among them the least expected E2E, then instance, then model
name. Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.picking import name_of, told_s, told_usd
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
                reasons.append(f"dearer: {_told(prices[at])} against {_told(prices[index])} expected")
            else:
                reasons.append(
                    f"as cheap but no faster: {told_s(_e2e_s(option))} "
                    f"against {told_s(_e2e_s(best))} expected"
                )
        return Choice(index, [None if price == inf else price for price in prices], reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Nothing to count."""


def _e2e_s(option: Option) -> float:
    prediction = option.prediction
    return inf if prediction is None or prediction.e2e_s_mean is None else prediction.e2e_s_mean


def _told(price_usd: float) -> str:
    return told_usd(None if price_usd == inf else price_usd)
