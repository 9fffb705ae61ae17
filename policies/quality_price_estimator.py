"""The price of a unit of quality for `cost`, from what recent requests were offered.

To serve N requests at the least cost with a mean quality of at least alpha, each request takes its option of least
cost - lambda x quality. lambda is the dual price of that constraint (ECCOS / OmniRouter, arXiv 2502.20576).

lambda follows from the offers: each request starts at its cheapest option and climbs the lower hull of its (quality,
cost) points (`policies.lower_hull`). Each step buys some quality at some price. The steps of all requests are taken,
cheapest first, until the mean is alpha. PORT solves its dual once, on the first requests. Here the steps are kept as a
histogram over the logarithm of their price that forgets exponentially. So lambda follows the traffic with some hundred
numbers of state, for any unit of the tariff, and is right from the second request on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, floor, log

from policies.lower_hull import lower_hull, steps_of

#: Bins of the histogram for each factor e of the price.
_BINS_PER_FACTOR = 12
#: Weights are scaled back before they exceed this.
_MAX_WEIGHT = 1e12


@dataclass(slots=True)
class QualityPriceEstimator:
    """The offers of one scope's requests. Recent requests weigh more."""

    _next_weight: float = 1.0
    _weight: float = 0.0
    _least_quality: float = 0.0  # weighted sum of the cheapest options' qualities
    _cost_usd: float = 0.0  # weighted sum of the mean costs
    _steps: dict[int, float] = field(default_factory=dict)  # weighted quality, by bin of the price
    _models: dict[str, tuple[float, float]] = field(default_factory=dict)  # weight, weighted sum of qualities

    @property
    def mean_cost_usd(self) -> float:
        """Mean cost of an answer over the models offered; 0 before the first request."""
        return self._cost_usd / self._weight if self._weight else 0.0

    def add(self, offers: Sequence[tuple[str, float, float]], window_requests: int) -> None:
        """A request was offered these (model, quality, cost in USD): at least one, one for each model. The weight of a
        request falls by a factor e over `window_requests` requests."""
        keep = 1.0 - 1.0 / max(window_requests, 2)
        weight = self._next_weight
        self._next_weight /= keep
        self._weight += weight
        self._cost_usd += weight * sum(cost for _, _, cost in offers) / len(offers)
        for model, quality, _ in offers:
            seen, total = self._models.get(model, (0.0, 0.0))
            self._models[model] = seen + weight, total + weight * quality
        hull = lower_hull([(quality, cost) for _, quality, cost in offers])
        self._least_quality += weight * hull[0][0]
        for step in steps_of(hull):
            at = floor(_BINS_PER_FACTOR * log(step.price))
            self._steps[at] = self._steps.get(at, 0.0) + weight * step.quality
        if self._next_weight > _MAX_WEIGHT:
            self._scale_back()

    def _scale_back(self) -> None:
        scale = 1.0 / self._next_weight
        self._next_weight = 1.0
        self._weight *= scale
        self._least_quality *= scale
        self._cost_usd *= scale
        negligible = 1e-6 * self._weight
        self._steps = {at: mass * scale for at, mass in self._steps.items() if mass * scale > negligible}
        self._models = {
            model: (seen * scale, total * scale)
            for model, (seen, total) in self._models.items()
            if seen * scale > negligible
        }

    def best_single(self) -> tuple[str, float] | None:
        """The model of highest mean quality among those that at least half of the requests were offered, and that mean.
        Ties by name. None before the first request."""
        means = [
            (-total / seen, model)
            for model, (seen, total) in self._models.items()
            if 2 * seen >= self._weight
        ]
        if not means:
            return None
        negated, model = min(means)
        return model, -negated

    def price_usd(self, quality: float) -> float:
        """USD for a unit of quality at which the mean quality of such requests is `quality`. 0 if the cheapest options
        reach it; the price of the most expensive step if no option does."""
        missing = quality * self._weight - self._least_quality
        if missing <= 0.0 or not self._steps:
            return 0.0
        last = 0
        for at in sorted(self._steps):
            last = at
            mass = self._steps[at]
            if mass >= missing:
                return exp((at + missing / mass) / _BINS_PER_FACTOR)
            missing -= mass
        return exp((last + 1) / _BINS_PER_FACTOR)
