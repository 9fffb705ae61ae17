"""The price of a unit of quality for `cost`, from what recent requests were offered.

To serve N requests at the least cost with a mean quality of at least alpha, each request takes its option of least
cost - lambda x value. lambda is the dual price of that constraint (ECCOS / OmniRouter, arXiv 2502.20576). `value` is the
quality minus the risks that come before quality (`policies.cost`).

lambda follows from the offers: each request starts at its cheapest option and climbs the lower hull of its (value, cost)
points (`policies.lower_hull`). Each step buys some quality at some price. The steps of all requests are taken, cheapest
first, until the mean is alpha. PORT solves its dual once, on the first requests. Here the steps are kept as a histogram
over the logarithm of their price that forgets exponentially. So lambda follows the traffic with a few hundred numbers of state,
whatever the unit of the tariff, and is right from the second request on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, floor, log
from typing import NamedTuple

from policies.lower_hull import lower_hull

#: Bins of the histogram for each factor e of the price.
_BINS_PER_FACTOR = 12
#: Prices in USD for a unit of quality are limited to this range. No tariff leaves it.
_LEAST_USD, _MOST_USD = 1e-100, 1e100
#: Weights are scaled back before they exceed this.
_MAX_WEIGHT = 1e12


class Offer(NamedTuple):
    """A model's offer for a request: its value and cost decide, and it has this quality."""

    value: float
    cost_usd: float
    quality: float


@dataclass(slots=True)
class QualityPriceEstimator:
    """The offers of one scope's requests. Recent requests weigh more."""

    _next_weight: float = 1.0
    _weight: float = 0.0
    _least_quality: float = 0.0  # weighted sum of the cheapest offers' qualities
    _best_quality: float = 0.0  # the same, of the offers of most value
    _best_with_looks: float = 0.0  # the same, with second looks
    _steps: dict[int, float] = field(default_factory=dict)  # weighted quality, by bin of the price

    @property
    def reachable(self) -> float | None:
        """The mean quality if every request took its offer of most value; None before the first request."""
        return self._best_quality / self._weight if self._weight else None

    @property
    def reachable_with_looks(self) -> float:
        """The same with second looks; 0 before the first request."""
        return self._best_with_looks / self._weight if self._weight else 0.0

    def add(self, offers: Sequence[Offer], window_requests: float, look: Offer | None = None) -> float:
        """A request had these offers, at least one. Returns the quality of that of most value. The weight of a request
        falls by a factor e over `window_requests` requests (two or more). `look` is a further offer, which is not counted as
        reachable."""
        keep = 1.0 - 1.0 / window_requests
        weight = self._next_weight
        self._next_weight /= keep
        self._weight += weight
        quality = {(value, cost_usd): quality for value, cost_usd, quality in offers}
        hull = lower_hull(list(quality))
        best = quality[hull[-1]]
        if look is not None:
            quality[look.value, look.cost_usd] = look.quality
            hull = lower_hull(list(quality))
        self._least_quality += weight * quality[hull[0]]
        for below, above in pairwise(hull):
            price = (above[1] - below[1]) / (above[0] - below[0])
            at = floor(_BINS_PER_FACTOR * log(min(max(price, _LEAST_USD), _MOST_USD)))
            self._steps[at] = self._steps.get(at, 0.0) + weight * (quality[above] - quality[below])
        self._best_quality += weight * best
        self._best_with_looks += weight * quality[hull[-1]]
        if self._next_weight > _MAX_WEIGHT:
            self._scale_back()
        return best

    def _scale_back(self) -> None:
        scale = 1.0 / self._next_weight
        self._next_weight = 1.0
        self._weight *= scale
        self._least_quality *= scale
        self._best_quality *= scale
        self._best_with_looks *= scale
        negligible = 1e-6 * self._weight
        self._steps = {at: mass * scale for at, mass in self._steps.items() if abs(mass) * scale > negligible}

    def price_usd(self, quality: float) -> float:
        """USD for a unit of quality at which the mean quality of such requests is `quality`. 0 if the cheapest offers
        reach it; the price of the most expensive step if no offers do."""
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
