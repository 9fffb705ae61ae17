"""The price of a unit of quality: what the last bit of a wished mean quality costs.

To serve N requests at the least cost with a mean quality of at least alpha, each takes its option of least
cost - lambda x quality, where lambda is the dual price of that constraint (ECCOS / OmniRouter, arXiv 2502.20576).
Which lambda it is can be read off what was on offer: each request starts at its cheapest option and climbs the
lower convex hull of its (quality, cost) points; each step of a hull buys some quality at some price, and the
steps of all requests, cheapest first, are taken until the mean is alpha (the linear multiple-choice knapsack,
Sinha and Zoltners 1979). PORT solves its dual once on the first requests; here the steps are kept as a histogram
over the logarithm of their price that forgets exponentially, so that lambda follows the traffic at any
time from some hundred numbers, whatever the tariff's unit, and is right from the second request on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, floor, log

from policies.lower_hull import lower_hull, steps_of

#: Bins of the histogram for each factor e of the price.
_BINS_A_FACTOR = 12
#: Weights are scaled back before they pass this.
_MOST_WEIGHT = 1e12


@dataclass(slots=True)
class OnOffer:
    """What a scope's requests were offered, as a histogram; recent ones weigh more."""

    _newest: float = 1.0  # weight of the next request
    _weight: float = 0.0
    _cheapest: float = 0.0  # sum of the cheapest options' qualities
    _cost_usd: float = 0.0  # sum of the mean costs
    _steps: dict[int, float] = field(default_factory=dict)  # quality by bin of its price
    _best: dict[str, tuple[float, float]] = field(default_factory=dict)  # by model: weight, sum of qualities

    @property
    def mean_cost_usd(self) -> float:
        """Of an answer by any of the models on offer."""
        return self._cost_usd / self._weight if self._weight else 0.0

    def add(self, offers: Sequence[tuple[str, float, float]], window_requests: int) -> None:
        """A request was offered these (model, quality, cost in USD), one for each model; at least one."""
        keep = 1.0 - 1.0 / max(window_requests, 2)
        weight = self._newest
        self._newest /= keep
        self._weight += weight
        self._cost_usd += weight * sum(cost for _, _, cost in offers) / len(offers)
        for model, quality, _ in offers:
            seen, total = self._best.get(model, (0.0, 0.0))
            self._best[model] = seen + weight, total + weight * quality
        hull = lower_hull([(quality, cost) for _, quality, cost in offers])
        self._cheapest += weight * hull[0][0]
        for step in steps_of(hull):
            at = floor(_BINS_A_FACTOR * log(step.price))
            self._steps[at] = self._steps.get(at, 0.0) + weight * step.quality
        if self._newest > _MOST_WEIGHT:
            self._scale_back()

    def _scale_back(self) -> None:
        scale = 1.0 / self._newest
        self._newest = 1.0
        self._weight *= scale
        self._cheapest *= scale
        self._cost_usd *= scale
        least = 1e-6 * self._weight
        self._steps = {at: mass * scale for at, mass in self._steps.items() if mass * scale > least}
        self._best = {
            model: (seen * scale, total * scale)
            for model, (seen, total) in self._best.items()
            if seen * scale > least
        }

    def best_single(self) -> tuple[str, float] | None:
        """The model of the greatest mean quality among those that half of the requests were offered, and that
        mean; ties by name. None before the first request."""
        means = [
            (-total / seen, model) for model, (seen, total) in self._best.items() if 2 * seen >= self._weight
        ]
        if not means:
            return None
        worst, model = min(means)
        return model, -worst

    def price_usd(self, quality: float) -> float:
        """USD for a unit of quality at which the mean quality of such requests is `quality`; 0 where the cheapest
        options reach it, and where none do the price of the dearest step."""
        wanted = quality * self._weight - self._cheapest
        if wanted <= 0.0 or not self._steps:
            return 0.0
        last = 0
        for at in sorted(self._steps):
            last = at
            mass = self._steps[at]
            if mass >= wanted:
                return exp((at + wanted / mass) / _BINS_A_FACTOR)
            wanted -= mass
        return exp((last + 1) / _BINS_A_FACTOR)
