"""`budget_online`: PORT, learned online under a budget; then round robin over the instances.

The first OBSERVED requests of a scope go to random models, evenly. From their estimates the price of money is found
once: the gamma >= 0 that minimises  eps gamma B + sum_i max_m (d_im - gamma g_im), where d is quality, g cost and eps B
the observed requests' part of the budget. (PORT's factor alpha of d only scales gamma.) From then on each request goes to
the model of greatest d - gamma g. While the scope has spent more than its budget so far, it goes to the cheapest model.

PORT is "Efficient Training-Free Online Routing for High-Volume Multi-LLM Serving" (arXiv 2509.02718). It observes the
first 2.5 % of a known number of requests. As there, the estimates are those of nearest neighbours.

PORT has a budget, and so a gamma, for each model; here the budget is a total over all models, as money is. It is the
least cost at which the observed requests reach the scope's target quality, so that this
policy can be compared with those that hold the target itself. Spend is the sum of estimated costs. Ties: the cheaper
model, then its name; none in the random part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from policies.quality_window import Offers, Window, price_usd, target_quality
from policies.scopes import Scopes
from policies.settings import PolicySettings
from policies.text_picking import ModelPicker, in_turn, offers
from router.core.interfaces import Choice, Option
from router.core.types import Request, Targets

#: 2.5 % of 2,000 requests.
OBSERVED = 50
_HALVINGS = 40


@dataclass(slots=True)
class _Scope:
    """A scope's first requests until gamma is known; then its budget for each request, and what is left of it."""

    window: Window = field(default_factory=Window)
    gamma: float | None = None
    budget_usd: float = 0.0
    left_usd: float = 0.0


class BudgetOnline(ModelPicker):
    """See the module's docstring. The score is gamma x cost - quality."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__("budget_online", "knn", settings)
        self._scopes: Scopes[str | None, _Scope] = Scopes(_Scope)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        if self._scopes.get(request.key).gamma is not None:
            return super().choose(request, options, rng)
        found = offers(request, options, self._estimator)
        draw = (rng if request.seed is None else Random(request.seed)).random()
        picked = found[int(draw * len(found))]
        return in_turn(options, found, None, picked, self.cursor, 1.0 / len(found))

    def _scores(self, request: Request, found: Offers) -> list[float]:
        scope = self._scopes.get(request.key)
        if scope.gamma is None or scope.left_usd < 0.0:
            return [offer.cost_usd for offer in found]
        return [scope.gamma * offer.cost_usd - offer.quality for offer in found]

    def _learn(self, request: Request, found: Offers, model: str, options: Sequence[Option]) -> None:
        """Observe the request, or charge it to the budget."""
        scope = self._scopes.use(request.key)
        if scope.gamma is None:
            scope.window.add(found, model)
            if scope.window.seen >= OBSERVED:
                _solve(scope, self._targets(request.key))
        else:
            scope.left_usd += scope.budget_usd - next(each.cost_usd for each in found if each.model == model)


def _solve(scope: _Scope, targets: Targets) -> None:
    rows = list(scope.window.rows)
    spent_usd = _spent_usd(rows, 1.0, price_usd(scope.window.upgrades, target_quality(rows, targets)))
    scope.budget_usd = spent_usd / len(rows)
    scope.gamma = price_of_money(rows, spent_usd)
    scope.window = Window()


def price_of_money(rows: Sequence[Offers], budget_usd: float) -> float:
    """gamma: the least price at which the rows spend no more than the budget. Spend falls as the price rises (the sum
    above is convex, and its slope in gamma is the budget minus the spend), so bisection finds it."""
    if _spent_usd(rows, 0.0, 1.0) <= budget_usd:
        return 0.0
    cheapest = min(offer.cost_usd for row in rows for offer in row)
    highest = 1e3 / max(cheapest, 1e-12)
    low, high = highest * 1e-12, highest
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5  # by ratio: gamma spans many powers of ten
        if _spent_usd(rows, middle, 1.0) <= budget_usd:
            high = middle
        else:
            low = middle
    return high


def _spent_usd(rows: Sequence[Offers], of_money: float, of_quality: float) -> float:
    """What the rows spend at these prices."""
    return sum(
        min((of_money * usd - of_quality * quality, usd) for _, quality, usd in row)[1] for row in rows
    )
