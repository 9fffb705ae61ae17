"""`llm_router_rr`: RouteLLM's matrix factorisation, then round robin.

With two models, the stronger one (by mean estimated quality over the window) takes the request if it is likely enough to
answer better: sigmoid(logit of its quality - logit of the weaker one's quality) is at least a threshold. RouteLLM
(arXiv 2406.18665) sets the threshold at a quantile of win rates, for a desired share of calls to the stronger model.
Here the quantile is found online: the least share at which the scope's recent requests reach the target mean quality. If
the stronger model is also the cheaper one, it takes all requests.

Otherwise there is no such pair. Then it picks the least cost - price x quality (`policies.priced_picker`). For two models
that is the same threshold in other units.

The model's instances follow in turn. Ties: the weaker of two models; of more the cheaper model, then its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

from policies.priced_picker import PricedPicker
from policies.quality_window import Offers, Window
from policies.scopes import Scopes
from policies.settings import PolicySettings
from router.core.interfaces import Option
from router.core.types import Request

_LEAST = 1e-6
#: Log-odds beyond those of any win.
_UNBOUNDED = 1e3


@dataclass(slots=True)
class _Threshold:
    """`strong` is the stronger model's name, `logit` the least log-odds at which it takes a request."""

    window: Window = field(default_factory=Window)
    strong: str | None = None
    logit: float = 0.0


class LLMRouter(PricedPicker):
    """See the module's docstring. With two models the stronger one's score is the threshold minus the log-odds that it
    wins, and the weaker one's is 0. With more it is cost - price x quality in USD."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__("llm_router_rr", "factorisation", settings)
        self._thresholds: Scopes[tuple[str | None, str, str], _Threshold] = Scopes(_Threshold)

    def _learn(self, request: Request, found: Offers, model: str, options: Sequence[Option]) -> None:
        if len(found) != 2:
            super()._learn(request, found, model, options)
            return
        state = self._thresholds.use((request.key, found[0].model, found[1].model))
        if state.window.add(found, model):
            rows = list(state.window.rows)
            strong = _stronger(rows)
            state.strong = rows[0][strong].model
            state.logit = threshold(rows, strong, state.window.next_target(self._targets(request.key)))

    def _scores(self, request: Request, found: Offers) -> list[float]:
        if len(found) != 2:
            return super()._scores(request, found)
        state = self._thresholds.get((request.key, found[0].model, found[1].model))
        strong, enough = int(found[1].quality > found[0].quality), 0.0
        if state.strong is not None:
            strong, enough = int(found[1].model == state.strong), state.logit
        scores = [0.0, 0.0]
        scores[strong] = enough - _logit(found[strong].quality) + _logit(found[1 - strong].quality)
        if scores[strong] == 0.0:  # exactly the threshold is enough
            scores[strong] = -_LEAST
        return scores


def threshold(rows: Sequence[Offers], strong: int, target: float) -> float:
    """The greatest log-odds of a win such that the rows reach the target mean quality if the model at index `strong`
    takes all rows at or above it. The most likely wins come first."""
    weak = 1 - strong
    if sum(row[strong].cost_usd for row in rows) <= sum(row[weak].cost_usd for row in rows):
        return -_UNBOUNDED
    wins = sorted(
        (
            (_logit(row[strong].quality) - _logit(row[weak].quality), row[strong].quality - row[weak].quality)
            for row in rows
        ),
        reverse=True,
    )
    total = sum(row[weak].quality for row in rows)
    enough = _UNBOUNDED
    for win, gain in wins:
        if total >= target * len(rows):
            return enough
        total += gain
        enough = win
    return enough


def _stronger(rows: Sequence[Offers]) -> int:
    first, second = (sum(row[at].quality for row in rows) for at in (0, 1))
    return int(second > first)


def _logit(quality: float) -> float:
    bounded = min(max(quality, _LEAST), 1.0 - _LEAST)
    return log(bounded / (1.0 - bounded))
