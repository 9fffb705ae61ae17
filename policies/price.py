"""`price`: the least expected price, input price x prompt + output price x E[min(output, cap)].

A cheap model with long answers can cost more than an expensive model with short ones. Options within 1e-9 of the least
price (replicas) count as equal: among them the least expected E2E wins, then instance, then model name. Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.expected import expected_s
from policies.picking import Reasons, format_s, format_usd, known, name_of
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request

_SAME = 1e-9


class LeastPrice(Policy):
    """See the module's docstring. The score is the expected price in USD."""

    name = "price"
    predicts = True

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        prices = [_price_usd(option) for option in options]
        times_s = [expected_s(option) for option in options]
        bound_usd = min(prices) * (1 + _SAME)
        equal = [at for at, price_usd in enumerate(prices) if price_usd <= bound_usd]
        index = min(equal, key=lambda at: (times_s[at], name_of(options[at])))

        def why(at: int) -> str:
            if prices[at] > bound_usd:
                return (
                    f"more expensive: {format_usd(prices[at])} expected, against {format_usd(prices[index])}"
                )
            return f"same price but not faster: {format_s(times_s[at])} expected, against {format_s(times_s[index])}"

        return Choice(index, known(prices), Reasons(len(options), index, why))


def _price_usd(option: Option) -> float:
    prediction = option.prediction
    return inf if prediction is None or prediction.cost_usd is None else prediction.cost_usd
