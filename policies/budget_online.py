"""`budget_online`: PORT, learned online under a budget; then round robin over the instances.

The first OBSERVED requests of a scope go to models at random (evenly). On what was estimated for them the prices of
money are found once: the gamma >= 0 of least  eps gamma.B + sum_i max_m (ALPHA d_im - gamma_m g_im), where d is
quality, g cost, eps B the observed requests' part of the budget. From then on each request goes to the model of
greatest ALPHA d - gamma g. While the scope has spent more than its budget so far, its cheapest model is taken.
PORT: "Efficient Training-Free Online Routing for High-Volume Multi-LLM Serving" (arXiv 2509.02718), which observes
the first 2.5 % of a known number of requests; estimates are those of nearest neighbours, as there.

The budget is a total over all models, as money is, so all models have one gamma (`gammas` can hold one budget for
each model). It is what the scope's quality target would have cost on the observed requests at the least, so that this
policy can be compared with those that hold the target itself. Spending is told by estimated costs. Ties: the cheaper model, then its name; none in the random part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from policies.quality_price import Row, Scopes, Window, price_usd, wished
from policies.settings import PolicySettings, Targets
from policies.text_picking import in_turn, least, offers, row_of
from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request

#: 2.5 % of 2,000 requests.
OBSERVED = 50
#: Scale of quality in the sum; the gammas are in proportion.
ALPHA = 1.0
_HALVINGS = 40
_SWEEPS = 12


@dataclass(slots=True)
class _Scope:
    """What a scope has come to: its first requests until the gamma is known."""

    window: Window = field(default_factory=Window)
    gamma: float | None = None
    budget_usd: float = 0.0
    left_usd: float = 0.0


class BudgetOnline:
    """See the module's docstring. The score is gamma x cost - ALPHA x quality."""

    name = "budget_online"
    predicts = False

    def __init__(self, settings: PolicySettings) -> None:
        self._estimator = settings.text.get("knn")
        self._targets = settings.targets
        self._scopes: Scopes[str | None, _Scope] = Scopes()
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        scope = self._scopes.get(request.key)
        if scope is None or scope.gamma is None:
            draw = (rng if request.seed is None else Random(request.seed)).random()
            picked = found[int(draw * len(found))]
            return in_turn(options, found, None, picked, self.turns, 1.0 / len(found))
        if scope.left_usd < 0.0:
            scores = [offer.cost_usd for offer in found]
        else:
            scores = [scope.gamma * offer.cost_usd - ALPHA * offer.quality for offer in found]
        return in_turn(options, found, scores, least(found, scores), self.turns)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request is observed, or paid for; the turn passes on."""
        option = options[choice.index]
        model, row = option.candidate.model, row_of(choice.memo)
        self.turns.passed(model, option)
        scope = self._scopes.get(request.key) or _Scope()
        self._scopes.put(request.key, scope)
        if scope.gamma is None:
            scope.window.add(row, model)
            if scope.window.seen >= OBSERVED:
                _solve(scope, self._targets(request.key))
        else:
            scope.left_usd += scope.budget_usd - row.cost_usd[row.models.index(model)]


def _solve(scope: _Scope, targets: Targets) -> None:
    rows = list(scope.window.rows)
    wish = wished(rows, targets)
    price = price_usd(scope.window.hulls, wish)
    spent_usd = sum(
        min((usd - price * quality, usd) for quality, usd in zip(row.quality, row.cost_usd, strict=True))[1]
        for row in rows
    )
    scope.budget_usd = spent_usd / len(rows)
    owner = {model: "all" for row in rows for model in row.models}
    scope.gamma = gammas(rows, owner, {"all": spent_usd})["all"]
    scope.window = Window()


def gammas(rows: Sequence[Row], owner: dict[str, str], budgets_usd: dict[str, float]) -> dict[str, float]:
    """The price of each budget: the least at which what the rows take of it is no more than it holds. `owner` names
    the budget that pays for a model. The sum above is convex and its slope by one gamma is the budget less what is
    spent of it, so each is found by halving, in turn: raising one never lowers what is spent of another, so going
    round from zero climbs to the least prices that clear all."""
    found = dict.fromkeys(budgets_usd, 0.0)
    cheapest = min(usd for row in rows for usd in row.cost_usd)
    highest = 1e3 * ALPHA / max(cheapest, 1e-12)
    for _ in range(1 if len(found) == 1 else _SWEEPS):
        before = dict(found)
        for name, budget_usd in budgets_usd.items():
            low, high = found[name], highest
            if _spent(rows, owner, found, name) <= budget_usd:
                continue
            for _ in range(_HALVINGS):
                # By ratio: gammas span many powers of ten.
                middle = (max(low, highest * 1e-12) * high) ** 0.5
                if _spent(rows, owner, {**found, name: middle}, name) <= budget_usd:
                    high = middle
                else:
                    low = middle
            found[name] = high
        if found == before:
            break
    return found


def _spent(rows: Sequence[Row], owner: dict[str, str], gamma: dict[str, float], name: str) -> float:
    """What the rows take of a budget at these prices."""
    total = 0.0
    for row in rows:
        _, usd, model = min(
            (gamma[owner[model]] * usd - ALPHA * quality, usd, model)
            for model, quality, usd in zip(row.models, row.quality, row.cost_usd, strict=True)
        )
        total += usd if owner[model] == name else 0.0
    return total
