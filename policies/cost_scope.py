"""What `cost` knows of one scope (a key, or the fleet): the prices of quality and of misses, and a mean answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from policies.quality_price_estimator import QualityPriceEstimator
from policies.settings import Targets

#: A shortfall of the mean quality is made up within this share of the window, and moves the aim by at most _MAX_SHIFT.
_CATCH_UP = 0.25
_MAX_SHIFT = 0.05
#: Share of the quality slack reserved for prediction errors. On held-out prompts of ZeroEval the picks fell short by up
#: to a third more than predicted (docs/pickers.md).
_RESERVED = 0.5
#: The price of a miss, in mean answers: at first, at most, and what one miss adds with a window of _MISS_WINDOW requests.
_MISS_PRICE = 3.0
_MAX_MISS_PRICE = 50.0
_MISS_STEP = 2.0
_MISS_WINDOW = 500


@dataclass(slots=True)
class CostScope:
    """The prices of one scope and what they follow from. `miss_price` is lambda_s in mean answers. `mean_e2e_s` is the
    mean expected E2E of what was taken; 0 before the first request."""

    offered: QualityPriceEstimator = field(default_factory=QualityPriceEstimator)
    miss_price: float = _MISS_PRICE
    mean_e2e_s: float = 0.0
    _requests: float = 0.0  # within the window
    _shortfall: float = 0.0  # decaying sum of target - quality taken

    def quality_usd(self, targets: Targets) -> float:
        """lambda_q: USD for a unit of quality."""
        return self.offered.price_usd(self._target(targets) + self._shortfall / self._catch_up_requests)

    def add(
        self,
        models: Sequence[tuple[str, float, float]],
        taken: str,
        quality: float,
        e2e_s: float,
        targets: Targets,
    ) -> None:
        """A request was offered these (model, quality, cost in USD) and got `taken`, expected to take `e2e_s`. `quality`
        counts if `taken` is not among the models, because its cost is unknown."""
        window = max(targets.window_requests, 2)
        self.offered.add(models, window)
        qualities = {name: each for name, each, _ in models}
        target = self._target(targets)
        best = self.offered.best_single()
        if best is not None and best[0] in qualities:
            target += qualities[best[0]] - best[1]  # an easy prompt raises the bar, a hard one lowers it
        self._add_shortfall(target - qualities.get(taken, quality), 1.0 - 1.0 / window)
        if isfinite(e2e_s):
            self.mean_e2e_s += (e2e_s - self.mean_e2e_s) / min(self._requests, window)

    def add_misses(self, excess: float, targets: Targets) -> None:
        """Move lambda_s by `excess`: misses, expected or observed, minus those that the target allows."""
        step = _MISS_STEP * _MISS_WINDOW / max(targets.window_requests, 1)
        self.miss_price = min(max(self.miss_price + step * excess, 0.0), _MAX_MISS_PRICE)

    def _target(self, targets: Targets) -> float:
        if targets.quality is not None:
            return targets.quality
        best = self.offered.best_single()
        return 0.0 if best is None else best[1] - (1.0 - _RESERVED) * targets.quality_slack

    @property
    def _catch_up_requests(self) -> float:
        return max(_CATCH_UP * self._requests, 1.0)

    def _add_shortfall(self, shortfall: float, keep: float) -> None:
        """Add to the shortfall of quality. The sum is bounded, so that an unreachable target does not leave a shortfall
        that later requests have to make up for."""
        self._requests = keep * self._requests + 1.0
        limit = _MAX_SHIFT * self._catch_up_requests
        self._shortfall = min(max(keep * self._shortfall + shortfall, -limit), limit)
