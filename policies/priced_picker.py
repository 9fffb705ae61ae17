"""Four estimators of quality and answer length, and one rule: the least cost - price x quality.

The price holds the mean estimated quality of the scope's recent requests at the target (`policies.quality_window`).

- `knn_rr`: the most similar prompts in the artifact. kNN routers are strong in distribution and brittle outside it
  (RouterArena, arXiv 2510.00202).
- `clusters_rr`: the prompt's nearest clusters (Avengers-Pro, arXiv 2508.12631). There the weight of quality against cost is
  set by hand; here it is the price.
- `logistic_rr`: for each model a logistic regression of the quality and a ridge regression of the length, on the encoder's
  vector of the prompt.
- `llm_router_rr`: matrix factorisation, where there are not two models (`policies.llm_router_rr`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.quality_window import Offers, Window, price_usd
from policies.scopes import Scopes
from policies.settings import PolicySettings
from policies.text_picking import ModelPicker
from router.core.interfaces import Option
from router.core.types import Request


@dataclass(slots=True)
class _Price:
    window: Window = field(default_factory=Window)
    usd: float = 0.0  # for a unit of quality


class PricedPicker(ModelPicker):
    """See the module's docstring. The score is that difference in USD."""

    def __init__(self, name: str, estimator: str, settings: PolicySettings) -> None:
        super().__init__(name, estimator, settings)
        self._prices: Scopes[str | None, _Price] = Scopes(_Price)

    def _scores(self, request: Request, found: Offers) -> list[float]:
        usd = self._prices.get(request.key).usd
        return [offer.cost_usd - usd * offer.quality for offer in found]

    def _learn(self, request: Request, found: Offers, model: str, options: Sequence[Option]) -> None:
        price = self._prices.use(request.key)
        if price.window.add(found, model):
            target = price.window.next_target(self._targets(request.key))
            price.usd = price_usd(price.window.upgrades, target)
