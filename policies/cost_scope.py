"""What `cost` knows of one scope (a key, or the fleet): the price of quality, its caution with misses, and what they follow
from. `policies.cost` says how they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from policies.quality_price_estimator import Offer, QualityPriceEstimator
from router.core.types import Targets

#: Offers are remembered over this share of the window. A shortfall of the mean quality is made up within it. It moves the aim by
#: at most _MAX_SHIFT.
_MEMORY = 0.25
_MAX_SHIFT = 0.05
#: Share of the quality slack reserved for prediction errors.
_RESERVED = 0.5
#: `caution`: its first value, its bounds, and what one miss adds to its logarithm with a window of _MISS_WINDOW requests. At the
#: least caution the full difference of quality and spend is worth a certain miss, at the most caution a risk of 2 %.
FIRST_CAUTION = 4.0
_LEAST_CAUTION = 1.0
_MOST_CAUTION = 50.0
_MISS_STEP = 0.2
_MISS_WINDOW = 500
#: Share of the misses that the target allows at which `caution` settles. The rest is for chance.
_AIM = 0.6


@dataclass(slots=True)
class CostScope:
    """The state of one scope. The means are running ones: `usual_usd` of an answer's cost, `spread` of the difference
    between a request's best and worst quality, `mean_e2e_s` of the expected E2E of what was taken (0 before the first
    request), `reached` of the quality taken, `attained` of the SLOs met (None: none ended yet)."""

    offered: QualityPriceEstimator = field(default_factory=QualityPriceEstimator)
    caution: float = FIRST_CAUTION
    usual_usd: float = 0.0
    spread: float = 0.0
    mean_e2e_s: float = 0.0
    reached: float | None = None
    attained: float | None = None
    _requests: float = 0.0  # within the memory
    _ended: float = 0.0  # the same, of those with an SLO that ended
    _shortfall: float = 0.0  # decaying sum of the quality aimed at - quality taken

    def quality_usd(self, targets: Targets) -> float:
        """lambda_q: USD for a unit of quality."""
        if self.usual_usd == 0.0:
            return 1.0  # answers are free, so nothing stands against quality
        return self.offered.price_usd(self._aim(targets) + self._shortfall / max(self._requests, 1.0))

    def unit_usd(self, quality_usd: float) -> float:
        """What quality and spend of an answer usually differ by, at this price of quality."""
        return self.usual_usd + quality_usd * self.spread

    def offer(
        self,
        offers: Sequence[Offer],
        usual_usd: float,
        spread: float,
        targets: Targets,
        look: Offer | None = None,
    ) -> float:
        """A request had these offers, of mean cost `usual_usd` and of qualities that differ by `spread`, and perhaps a second
        look. Returns the quality of the most valuable offer, without the second look."""
        memory = _memory(targets)
        self._requests += 1.0 - self._requests / memory
        self.usual_usd += (usual_usd - self.usual_usd) / self._requests
        self.spread += (spread - self.spread) / self._requests
        return self.offered.add(offers, memory, look)

    def take(self, quality: float, reachable: float, e2e_s: float | None, targets: Targets) -> None:
        """The request took an answer of this quality, where `reachable` was its best."""
        # An easy prompt raises the aim. A hard one lowers it, and so does a moment in which the best model is full.
        aim = self._aim(targets) + reachable - (self.offered.reachable or 0.0)
        keep = 1.0 - 1.0 / _memory(targets)
        limit = _MAX_SHIFT * max(self._requests, 1.0)
        self._shortfall = min(max(keep * self._shortfall + aim - quality, -limit), limit)
        share = 1.0 / max(self._requests, 1.0)
        self.reached = quality if self.reached is None else self.reached + share * (quality - self.reached)
        if e2e_s is not None:
            self.mean_e2e_s += share * (e2e_s - self.mean_e2e_s)

    def add_misses(self, misses: float, targets: Targets) -> None:
        """Move `caution` by `misses` beyond what is allowed: expected ones, or what an outcome adds to these."""
        step = _MISS_STEP * _MISS_WINDOW / targets.window_requests
        caution = self.caution * exp(min(max(step * misses, -1.0), 1.0))
        self.caution = min(max(caution, _LEAST_CAUTION), _MOST_CAUTION)

    def end(self, met: bool, targets: Targets) -> None:
        """A request with an SLO ended."""
        self._ended += 1.0 - self._ended / _memory(targets)
        before = self.attained or 0.0
        self.attained = before + (met - before) / self._ended

    def wished(self, targets: Targets) -> float | None:
        """The mean quality to hold: the target, by default what is reachable less the slack."""
        reachable = self.offered.reachable
        if targets.quality is not None or reachable is None:
            return targets.quality
        return reachable - (1.0 - _RESERVED) * targets.quality_slack

    def _aim(self, targets: Targets) -> float:
        reachable = self.offered.reachable
        wished = self.wished(targets)
        if reachable is None or wished is None:
            return 0.0
        # The quality of single answers bounds the default target only.
        return min(wished, reachable if targets.quality is None else self.offered.reachable_with_looks)


def _memory(targets: Targets) -> float:
    """Requests that are remembered."""
    return max(_MEMORY * targets.window_requests, 2.0)


def allowed_misses(targets: Targets) -> float:
    """Share of misses at which `caution` settles."""
    return _AIM * (1.0 - targets.attainment)
