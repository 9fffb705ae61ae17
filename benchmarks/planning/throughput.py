"""The objective throughput: the largest multiple of the requests that keeps the target.

A placement that does not keep the target at a little more than the best multiple so far costs one simulation. Only one
that does is searched for its own largest multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from benchmarks.planning.planner import Plan, Planner
from benchmarks.planning.scoring import Score
from benchmarks.planning.search import in_turn
from policies.placement.types import Placement

#: The largest multiple is found to this factor, and a better placement has to beat the best by it.
_NEAR = 1.04
#: The first step while one side of the largest multiple is unknown, and how many steps there are at most.
_STEP, _STEPS = _NEAR**2, 12
#: No load is tried that is so many times smaller or larger than the bound. A placement that misses the target there misses it at any
#: load, and slower requests would take days of simulated time; one that keeps it at the largest keeps it where all come at once.
_FAR = 1000.0
#: Loads for which candidates are searched, as shares of the largest multiple that the cluster could ever serve.
_LOADS = (0.4, 0.6, 0.8)
#: About the simulations of a draw that the largest multiple of a finalist takes.
_SEARCHED = 3


@dataclass(slots=True)
class ThroughputPlanner(Planner):
    """`bound`: no placement keeps the target at a larger multiple."""

    bound: float = 1.0
    best: float = 0.0

    @property
    def multiple(self) -> float:
        return self.best or _LOADS[0] * self.bound

    @property
    def smaller_loads(self) -> Sequence[float]:
        return ()

    def candidates(self, count: int) -> list[Placement]:
        return in_turn([self.search.candidates(count, load * self.bound) for load in _LOADS])[:count]

    def simulate(self, placements: Sequence[Placement]) -> None:
        waiting = list(placements)
        if not self.best:
            self._record(waiting[0], *self._largest(waiting[0], [self.seed], self.multiple))
            waiting = waiting[1:]
        multiple = self.best * _NEAR or self.multiple
        scores = self.scorer.scores(waiting, [self.seed], multiple)
        for placement, score in zip(waiting, scores, strict=True):
            self.chosen[placement] = Plan(placement, score, multiple)
        passed = [each for each in waiting if self._keeps(self.chosen[each].score)]
        for placement in sorted(passed, key=lambda each: -self.chosen[each].score.attainment)[:2]:
            self._record(placement, *self._largest(placement, [self.seed], self.best * _NEAR**2))

    def final(self, placements: Sequence[Placement], seeds: Sequence[int]) -> list[Plan]:
        found = []
        for placement in placements:
            multiple, score = self._largest(placement, seeds, self.chosen[placement].multiple)
            found.append(Plan(placement, score, multiple))
        return found

    def final_simulations(self) -> int:
        return _SEARCHED * Planner.final_simulations(self)

    def rank(self, plan: Plan) -> tuple[float, ...]:
        # Of one that does not keep the target it is only known that its multiple is smaller.
        kept = min(1.0, plan.score.attainment / self.aims.target)
        return (plan.multiple * kept, -plan.usd_per_hour)

    def _record(self, placement: Placement, multiple: float, score: Score) -> None:
        self.chosen[placement] = Plan(placement, score, multiple)
        if self._keeps(score):
            self.best = max(self.best, multiple)

    def _keeps(self, score: Score) -> bool:
        return score.attainment >= self.aims.target

    def _largest(self, placement: Placement, seeds: Sequence[int], start: float) -> tuple[float, Score]:
        """The largest multiple that keeps the target, and the score there; if none does, the least that was tried. Steps
        from the start grow until it is passed, then halve what is left (Bentley and Yao, Inf. Proc. Letters 5, 1976)."""
        low: tuple[float, Score] | None = None
        high: tuple[float, Score] | None = None
        least, most = self.bound / _FAR, self.bound * _FAR
        multiple, step = min(start, most), _STEP
        for _ in range(_STEPS):
            (score,) = self.scorer.scores([placement], seeds, multiple)
            if self._keeps(score):
                low = multiple, score
            else:
                high = multiple, score
            if low is None or high is None:
                if multiple <= least if low is None else multiple >= most:
                    break
                multiple = max(multiple / step, least) if low is None else min(multiple * step, most)
                step *= step
            elif high[0] <= low[0] * _NEAR:
                break
            else:
                multiple = sqrt(low[0] * high[0])
        found = low or high
        if found is None:
            raise ValueError("no step")
        return found
