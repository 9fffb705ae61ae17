"""`eccos_rr`: ECCOS-T, then round robin (arXiv 2502.20576, also called OmniRouter).

j* = argmin cost_ij - lambda x capability_ij + mu_j, with capability and length from a trained predictor with two
heads. The duals are found as the paper does, on batches: here the scope's most recent requests, every few of them.

    lambda <- [lambda + eta1 (alpha - mean capability of what is picked)]+
    mu_j   <- [mu_j + eta2 (n_j - L_j) / N]+

alpha is the wished mean quality of the scope, L_j the most requests of the batch that model j is to have:
HEADROOM times its share of the slots on offer (`max_concurrency` of its instances; where one has no bound, there is
none on any model). Then the model's instances in turn. Ties: the cheaper model, then its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from policies.quality_price import Row, Scopes, Window
from policies.settings import PolicySettings
from policies.text_picking import Offer, in_turn, least, offers, row_of
from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request

#: With 1 every model would have to take its exact share, and nothing were left to choose.
HEADROOM = 2.0
_BATCH = 64
_PASSES = 8
#: Steps of lambda and mu in units of the batch's mean cost, each pass' smaller than the one before.
_ETA_QUALITY = 40.0
_ETA_LOAD = 20.0
#: Most that quality is worth, in the same units: where both cannot be had, the bound on load holds.
_MOST_PRICE = 300.0


@dataclass(slots=True)
class _Duals:
    """`price` and `toll` are lambda and mu in USD."""

    window: Window = field(default_factory=Window)
    price: float = 0.0
    toll: dict[str, float] = field(default_factory=dict)
    share: dict[str, float] = field(default_factory=dict)


class Eccos:
    """See the module's docstring. The score is cost - lambda x capability + mu in USD."""

    predicts = False

    def __init__(self, name: str, estimator: str, settings: PolicySettings) -> None:
        self.name = name
        self._estimator = settings.text.get(estimator)
        self._targets = settings.targets
        self._scopes: Scopes[str | None, _Duals] = Scopes()
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        duals = self._scopes.get(request.key) or _Duals()
        scores = [
            offer.cost_usd - duals.price * offer.quality + duals.toll.get(offer.model, 0.0) for offer in found
        ]
        return in_turn(options, found, scores, least(found, scores), self.turns)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request joins its scope's batch, and the turn passes on."""
        option = options[choice.index]
        model, row = option.candidate.model, row_of(choice.memo)
        self.turns.passed(model, option)
        duals = self._scopes.get(request.key) or _Duals()
        self._scopes.put(request.key, duals)
        duals.share.update(shares(choice.memo, options))
        if duals.window.add(row, model):
            alpha = duals.window.wish(self._targets(request.key))
            ascend(duals, list(duals.window.rows)[-_BATCH:], alpha)


def shares(found: Sequence[Offer], options: Sequence[Option]) -> dict[str, float]:
    """By model: its share of all slots on offer; 1 for all where slots are not bounded."""
    bounds = [option.instance.max_concurrency for option in options]
    slots = [float(bound) for bound in bounds if bound is not None]
    if len(slots) < len(bounds) or not sum(slots):
        return dict.fromkeys((offer.model for offer in found), 1.0)
    return {offer.model: sum(slots[index] for index in offer.at) / sum(slots) for offer in found}


def ascend(duals: _Duals, rows: Sequence[Row], alpha: float) -> None:
    """A few passes of dual ascent over the batch, from where the last one ended. What is kept is the mean of
    the passes: single ones jump between the models on either side of a tie."""
    unit = fmean(usd for row in rows for usd in row.cost_usd)
    models = sorted({model for row in rows for model in row.models})
    price, toll = duals.price, {model: duals.toll.get(model, 0.0) for model in models}
    mean_price, mean_toll = 0.0, dict.fromkeys(models, 0.0)
    for step in range(_PASSES):
        got, taken = 0.0, dict.fromkeys(models, 0)
        for row in rows:
            _, _, picked, quality = min(
                (usd - price * each + toll[model], usd, model, each)
                for model, each, usd in zip(row.models, row.quality, row.cost_usd, strict=True)
            )
            got += quality
            taken[picked] += 1
        eta = unit / (1.0 + step) ** 0.5
        price += _ETA_QUALITY * eta * (alpha - got / len(rows))
        price = min(max(price, 0.0), _MOST_PRICE * unit)
        mean_price += price / _PASSES
        for model in models:
            over = taken[model] / len(rows) - min(HEADROOM * duals.share.get(model, 1.0), 1.0)
            toll[model] = max(toll[model] + _ETA_LOAD * eta * over, 0.0)
            mean_toll[model] += toll[model] / _PASSES
    duals.price, duals.toll = mean_price, mean_toll


def eccos_rr(settings: PolicySettings) -> Eccos:
    """See the module's docstring."""
    return Eccos("eccos_rr", "eccos_t", settings)
