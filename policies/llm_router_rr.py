"""`llm_router_rr`: RouteLLM's matrix factorisation, then round robin.

With two models, the stronger one (by mean estimated quality over the window) takes the request if it is likely enough to
answer better: sigmoid(logit of its quality - logit of the weaker one's quality) is at least a threshold. RouteLLM
(arXiv 2406.18665) sets the threshold at a quantile of win rates, for a desired share of calls to the stronger model.
Here the quantile is found online: the least share at which the scope's recent requests reach the target mean quality. If
the stronger model is also the cheaper one, it takes all requests.

With more than two models there is no such pair. Then it picks the least cost - price x quality; the price holds the mean
estimated quality of the scope's recent requests at the target (`policies.quality_window`). For two models that is the
same threshold in other units.

The model's instances follow in turn. Ties: the weaker of two models; of more the cheaper model, then its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from random import Random

from policies.quality_window import QualityPrices, Row, Scopes, Window
from policies.round_robin_cursor import RoundRobinCursor
from policies.settings import PolicySettings
from policies.text_picking import Offer, in_turn, least, offers, row_of
from router.core.interfaces import Choice, Option
from router.core.types import Request

_LEAST = 1e-6
#: Log-odds beyond those of any win.
_UNBOUNDED = 1e3
_Pair = tuple[str, str]


@dataclass(slots=True)
class _Threshold:
    """`strong` is the stronger model's name, `logit` the least log-odds at which it takes a request."""

    window: Window = field(default_factory=Window)
    strong: str | None = None
    logit: float = 0.0


class LLMRouter:
    """See the module's docstring. With two models the stronger one's score is the threshold minus the log-odds that it
    wins, and the weaker one's is 0. With more it is cost - price x quality in USD."""

    name = "llm_router_rr"
    predicts = False

    def __init__(self, settings: PolicySettings) -> None:
        self._estimator = settings.text.get("factorisation")
        self._targets = settings.targets
        self._thresholds: Scopes[tuple[str | None, _Pair], _Threshold] = Scopes()
        self._prices = QualityPrices()
        self.cursor = RoundRobinCursor()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        if len(found) == 2:
            scores = self._scores_of_two(request.key, found)
        else:
            price_usd = self._prices.usd(request.key)
            scores = [offer.cost_usd - price_usd * offer.quality for offer in found]
        return in_turn(options, found, scores, least(found, scores), self.cursor)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Add the request to its scope's window, and advance the model's cursor."""
        option = options[choice.index]
        model, row = option.candidate.model, row_of(choice.memo)
        self.cursor.advance(model, option)
        targets = self._targets(request.key)
        if len(row.models) != 2:
            self._prices.add(request.key, row, model, targets)
            return
        scope = request.key, (row.models[0], row.models[1])
        state = self._thresholds.get(scope) or _Threshold()
        self._thresholds.put(scope, state)
        if state.window.add(row, model):
            rows = list(state.window.rows)
            strong = _stronger(rows)
            state.strong = rows[0].models[strong]
            state.logit = threshold(rows, strong, state.window.next_target(targets))

    def _scores_of_two(self, key: str | None, found: Sequence[Offer]) -> list[float]:
        state = self._thresholds.get((key, (found[0].model, found[1].model)))
        strong, enough = int(found[1].quality > found[0].quality), 0.0
        if state is not None and state.strong is not None:
            strong, enough = int(found[1].model == state.strong), state.logit
        scores = [0.0, 0.0]
        scores[strong] = enough - _logit(found[strong].quality) + _logit(found[1 - strong].quality)
        if scores[strong] == 0.0:  # exactly the threshold is enough
            scores[strong] = -_LEAST
        return scores


def threshold(rows: Sequence[Row], strong: int, target: float) -> float:
    """The greatest log-odds of a win such that the rows reach the target mean quality if the model at index `strong`
    takes all rows at or above it. The most likely wins come first."""
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
        if total >= target * len(rows):
            return enough
        total += gain
        enough = win
    return enough


def _stronger(rows: Sequence[Row]) -> int:
    first, second = (sum(row.quality[at] for row in rows) for at in (0, 1))
    return int(second > first)


def _logit(quality: float) -> float:
    bounded = min(max(quality, _LEAST), 1.0 - _LEAST)
    return log(bounded / (1.0 - bounded))
