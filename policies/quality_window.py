"""The price of quality for the text-only policies, found exactly on a window of recent requests.

To serve N requests at the least cost with a mean quality of at least alpha, each request takes the model of least cost
- price x quality, for one price (the dual of that constraint; ECCOS / OmniRouter, arXiv 2502.20576). As the price
rises, each request's pick moves along the lower hull of its models (`policies.lower_hull`), so the price is exact for a
window of requests. It is computed again every few requests. The next target compensates for the difference between the
last window and its target, so that errors do not add up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from policies.lower_hull import Step, lower_hull, steps_of
from router.core.types import Targets

#: Requests of a scope in its window.
_MAX_ROWS = 128
#: Requests of a scope between two prices.
_PERIOD = 16
_ROUNDING = 1e-9
#: A unit of quality is never worth more than this many of the most expensive answers.
_MAX_PRICE = 1e4


class ModelOffer(NamedTuple):
    """What a model offers for a request: its expected quality in [0, 1], and the cost of an answer in USD."""

    model: str
    quality: float
    cost_usd: float


#: The offers of one request, ordered by model.
Offers = Sequence[ModelOffer]


class Upgrades(NamedTuple):
    """How a request's pick moves as the price of quality rises: from the cheapest model, of quality `least`, by `steps`.
    `max_cost_usd` is the cost of its most expensive model."""

    least: float
    steps: tuple[Step, ...]
    max_cost_usd: float


@dataclass(slots=True)
class Window:
    """Recent requests of one scope. `picked_quality` is the estimated quality of the models picked."""

    rows: deque[Offers] = field(default_factory=lambda: deque(maxlen=_MAX_ROWS))
    upgrades: deque[Upgrades] = field(default_factory=lambda: deque(maxlen=_MAX_ROWS))
    picked_quality: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_ROWS))
    seen: int = 0

    def add(self, row: Offers, picked: str) -> bool:
        """Add a request and the model picked. True if the price is due: often at first, then once a period."""
        self.rows.append(row)
        self.upgrades.append(upgrades_of(row))
        self.picked_quality.append(next(offer.quality for offer in row if offer.model == picked))
        self.seen += 1
        return self.seen % _PERIOD == 0 or self.seen in (1, 2, 4, 8)

    def next_target(self, targets: Targets) -> float:
        """The mean quality to aim at next: the target, plus what the window fell short of it."""
        rows = list(self.rows)[-targets.window_requests :]
        target = target_quality(rows, targets)
        shortfall = target - fmean(list(self.picked_quality)[-len(rows) :])
        return min(max(target + shortfall, 0.0), 1.0)


def target_quality(rows: Sequence[Offers], targets: Targets) -> float:
    """The configured target, or without one the quality of the best single model minus the slack."""
    return best_single(rows)[1] - targets.quality_slack if targets.quality is None else targets.quality


def best_single(rows: Sequence[Offers]) -> tuple[str, float]:
    """The model of highest mean quality among those that at least half of the rows have, and that mean. Ties: the
    cheaper model, then its name."""
    quality: dict[str, float] = {}
    cost_usd: dict[str, float] = {}
    counts: dict[str, int] = {}
    for row in rows:
        for model, each, usd in row:
            quality[model] = quality.get(model, 0.0) + each
            cost_usd[model] = cost_usd.get(model, 0.0) + usd
            counts[model] = counts.get(model, 0) + 1
    common = [model for model, count in counts.items() if 2 * count >= len(rows)] or list(counts)

    def rank(model: str) -> tuple[float, float, str]:
        return round(-quality[model] / counts[model], 12), cost_usd[model] / counts[model], model

    best = min(common, key=rank)
    return best, quality[best] / counts[best]


def price_usd(upgrades: Sequence[Upgrades], target: float) -> float:
    """The least price of a unit of quality at which the mean quality of the picks reaches `target`. If no price is high
    enough, one above every step."""
    total = sum(each.least for each in upgrades)
    needed = target * len(upgrades) - _ROUNDING
    usd = 0.0
    for step in sorted(step for each in upgrades for step in each.steps):
        if total >= needed:
            return usd
        total += step.quality
        usd = step.price * (1.0 + _ROUNDING)
    return usd if total >= needed else _MAX_PRICE * max(each.max_cost_usd for each in upgrades)


def upgrades_of(row: Offers) -> Upgrades:
    """See `Upgrades`."""
    hull = lower_hull([(offer.quality, offer.cost_usd) for offer in row])
    return Upgrades(hull[0][0], tuple(steps_of(hull)), max(offer.cost_usd for offer in row))
