"""`eccos_rr` and `eccos_r_rr`: ECCOS, then round robin (arXiv 2502.20576, also called OmniRouter).

j* = argmin cost_ij - lambda x capability_ij + mu_j. In `eccos_rr` (ECCOS-T) capability and length are from a trained predictor
with two heads. In `eccos_r_rr` (ECCOS-R) they are those of the 16 most similar prompts seen; nothing is trained, and a model
without neighbours gets its mean length and quality. (In the public code it gets length 0 and looks cheap.)
As in the paper, the duals are found on batches: here on the scope's most recent requests, again every few requests.

    lambda <- [lambda + eta1 (alpha - mean capability of the picks)]+
    mu_j   <- [mu_j + eta2 (n_j - L_j) / N]+

alpha is the scope's target mean quality. L_j is the greatest number of the batch's requests that model j should get:
HEADROOM times its share of the available slots (`max_concurrency` of its instances; if one instance has no limit, no
model has one). The model's instances follow in turn. Ties: the cheaper model, then its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from policies.quality_window import Offers, Window
from policies.scopes import Scopes
from policies.settings import PolicySettings
from policies.text_picking import ModelPicker
from router.core.interfaces import Option
from router.core.types import Request

#: With 1 every model would have to take exactly its share, and no choice would remain.
HEADROOM = 2.0
_BATCH = 64
_PASSES = 8
#: Step sizes of lambda and mu in units of the batch's mean cost. Each pass takes a smaller step than the one before.
_ETA_QUALITY = 40.0
_ETA_LOAD = 20.0
#: The greatest lambda, in the same units: if quality and load cannot both be satisfied, the load limit holds.
_MAX_QUALITY_PRICE = 300.0


@dataclass(slots=True)
class _Duals:
    """`quality_usd` is lambda, `load_usd` is mu by model. `share` is each model's share of the slots."""

    window: Window = field(default_factory=Window)
    quality_usd: float = 0.0
    load_usd: dict[str, float] = field(default_factory=dict)
    share: dict[str, float] = field(default_factory=dict)


class Eccos(ModelPicker):
    """See the module's docstring. The score is cost - lambda x capability + mu in USD."""

    def __init__(self, name: str, estimator: str, settings: PolicySettings) -> None:
        super().__init__(name, estimator, settings)
        self._scopes: Scopes[str | None, _Duals] = Scopes(_Duals)

    def _scores(self, request: Request, found: Offers) -> list[float]:
        duals = self._scopes.get(request.key)
        return [
            offer.cost_usd - duals.quality_usd * offer.quality + duals.load_usd.get(offer.model, 0.0)
            for offer in found
        ]

    def _learn(self, request: Request, found: Offers, model: str, options: Sequence[Option]) -> None:
        duals = self._scopes.use(request.key)
        duals.share.update(shares(found, options))
        if duals.window.add(found, model):
            alpha = duals.window.next_target(self._targets(request.key))
            ascend(duals, list(duals.window.rows)[-_BATCH:], alpha)


def shares(found: Offers, options: Sequence[Option]) -> dict[str, float]:
    """Each model's share of all slots; 1 for every model if some instance has no limit."""
    slots = dict.fromkeys((offer.model for offer in found), 0.0)
    for option in options:
        if option.instance.max_concurrency is None:
            return dict.fromkeys(slots, 1.0)
        slots[option.candidate.model] += option.instance.max_concurrency
    total = sum(slots.values())
    return {model: own / total if total else 1.0 for model, own in slots.items()}


def ascend(duals: _Duals, rows: Sequence[Offers], alpha: float) -> None:
    """A few passes of dual ascent over the batch, from the last result. The new duals are the mean over the passes:
    single passes jump between the models on either side of a tie."""
    unit = fmean(offer.cost_usd for row in rows for offer in row)
    models = sorted({offer.model for row in rows for offer in row})
    price, load = duals.quality_usd, {model: duals.load_usd.get(model, 0.0) for model in models}
    mean_price, mean_load = 0.0, dict.fromkeys(models, 0.0)
    for step in range(_PASSES):
        total, picks = 0.0, dict.fromkeys(models, 0)
        for row in rows:
            _, _, picked, quality = min(
                (usd - price * each + load[model], usd, model, each) for model, each, usd in row
            )
            total += quality
            picks[picked] += 1
        eta = unit / (1.0 + step) ** 0.5
        price += _ETA_QUALITY * eta * (alpha - total / len(rows))
        price = min(max(price, 0.0), _MAX_QUALITY_PRICE * unit)
        mean_price += price / _PASSES
        for model in models:
            excess = picks[model] / len(rows) - min(HEADROOM * duals.share.get(model, 1.0), 1.0)
            load[model] = max(load[model] + _ETA_LOAD * eta * excess, 0.0)
            mean_load[model] += load[model] / _PASSES
    duals.quality_usd, duals.load_usd = mean_price, mean_load
