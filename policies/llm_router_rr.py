"""`llm_router_rr`: RouteLLM's matrix factorisation, then round robin.

Of two models the stronger one (by mean estimated quality over the window) takes the request when it is likely
enough to answer better: win = sigmoid(logit of its quality - logit of the weaker one's), at least a threshold.
RouteLLM (arXiv 2406.18665) sets that at a quantile of win rates, for a wished share of calls to the stronger model.
Here the quantile is found online: the least share with which the scope's recent requests have the wished mean
quality. When the stronger model is the cheaper one too, it takes all.

Of more models, where there is no such pair: the greatest quality - cost / price, with the price that holds the mean
estimated quality of the scope's recent requests at its target (`policies.quality_price`), which for two models is
the same threshold in other units. Then the model's instances in turn. Ties: the weaker model; of more the cheaper
one, then its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from random import Random

from policies.quality_price import QualityPrices, Row, Scopes, Window
from policies.settings import PolicySettings
from policies.text_picking import Offer, in_turn, least, offers, row_of
from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request

_LEAST = 1e-6
_Pair = tuple[str, str]


@dataclass(slots=True)
class _Threshold:
    """`strong` is the stronger model's name, `logit` the least log-odds of its win that are enough."""

    window: Window = field(default_factory=Window)
    strong: str | None = None
    logit: float = 0.0


class LLMRouter:
    """See the module's docstring. The score of the stronger model is the threshold less its win's log-odds; of more
    than two models, cost - price x quality in USD."""

    name = "llm_router_rr"
    predicts = False

    def __init__(self, settings: PolicySettings) -> None:
        self._estimator = settings.text.get("factorisation")
        self._targets = settings.targets
        self._thresholds: Scopes[tuple[str | None, _Pair], _Threshold] = Scopes()
        self._prices = QualityPrices()
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        if len(found) == 2:
            scores = self._of_two(request.key, found)
        else:
            price_usd = self._prices.usd(request.key)
            scores = [offer.cost_usd - price_usd * offer.quality for offer in found]
        return in_turn(options, found, scores, least(found, scores), self.turns)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request joins its scope's window, and the turn passes on."""
        option = options[choice.index]
        model, row = option.candidate.model, row_of(choice.memo)
        self.turns.passed(model, option)
        targets = self._targets(request.key)
        if len(row.models) != 2:
            self._prices.took(request.key, row, model, targets)
            return
        scope = request.key, (row.models[0], row.models[1])
        state = self._thresholds.get(scope) or _Threshold()
        self._thresholds.put(scope, state)
        if state.window.add(row, model):
            rows = list(state.window.rows)
            strong = _stronger(rows)
            state.strong = rows[0].models[strong]
            state.logit = threshold(rows, strong, state.window.wish(targets))

    def _of_two(self, key: str | None, found: Sequence[Offer]) -> list[float]:
        state = self._thresholds.get((key, (found[0].model, found[1].model)))
        strong = int(found[1].quality > found[0].quality)
        enough = 0.0
        if state is not None and state.strong is not None:
            strong, enough = int(found[1].model == state.strong), state.logit
        scores = [0.0, 0.0]
        scores[strong] = enough - _logit(found[strong].quality) + _logit(found[1 - strong].quality)
        if scores[strong] == 0.0:  # the threshold itself is enough
            scores[strong] = -_LEAST
        return scores


def threshold(rows: Sequence[Row], strong: int, wish: float) -> float:
    """The greatest log-odds of a win such that the rows have the wished mean quality when all at least as likely
    are given to the model at index `strong`; those likeliest to gain come first."""
    weak = 1 - strong
    if sum(row.cost_usd[strong] for row in rows) <= sum(row.cost_usd[weak] for row in rows):
        return -_UNBOUNDED
    wins = sorted(
        (
            (_logit(row.quality[strong]) - _logit(row.quality[weak]), row.quality[strong] - row.quality[weak])
            for row in rows
        ),
        reverse=True,
    )
    total = sum(row.quality[weak] for row in rows)
    enough = _UNBOUNDED
    for win, gain in wins:
        if total >= wish * len(rows):
            return enough
        total += gain
        enough = win
    return enough


#: Log-odds that no win has.
_UNBOUNDED = 1e3


def _stronger(rows: Sequence[Row]) -> int:
    first, second = (sum(row.quality[at] for row in rows) for at in (0, 1))
    return int(second > first)


def _logit(quality: float) -> float:
    kept = min(max(quality, _LEAST), 1.0 - _LEAST)
    return log(kept / (1.0 - kept))
