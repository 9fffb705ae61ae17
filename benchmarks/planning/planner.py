"""The search for a plan: candidates of the fast planners, improved and chosen by the simulator.

1. The fast estimate gives the best placements of each planner.
2. The simulator scores them on one draw of the requests, and then changes of the best ones, as long as time is left.
3. The best of these are scored on draws that were not used so far. Their order there is the result. If the least cost is sought
   and none of them keeps the target there, dearer ones are scored too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from benchmarks.planning.scoring import Score, Scorer
from benchmarks.planning.search import STEP, CandidateSearch, PlanningAims, in_turn
from policies.placement.types import Placement

#: Placements that are simulated first, changes that are simulated at once, and how many are scored in the end.
_CANDIDATES, _CHANGES, _FINALISTS = 12, 6, 4
#: A simulation of many requests, or of more than a placement can serve, takes longer than this. If time is short then, only _FINALISTS
#: candidates are simulated first, and _HURRIED_FINALISTS scored in the end.
_LONG_S, _HURRIED_FINALISTS = 1.0, 2
#: Loads for which candidates are searched, as multiples of the requests. The fast estimate knows no batches that grow or prompts that
#: delay answers, so a placement that it finds just large enough may be too small. No further load is begun after this share of the time.
_LOADS, _SEARCH_SHARE = (1.0, 1.5, 2.5), 0.25
#: It knows no requests that share a group either, so a placement that it finds too small for a burst may be large enough. Smaller
#: loads are tried one after another while they give a better plan.
_SMALLER_LOADS = (0.5, 0.25, 0.1, 0.05)
#: Changes of one placement that are simulated at most.
_NEIGHBOURS = 24
#: The draws of the final scores, and how often dearer placements are scored.
_DRAWS, _DEARER = 5, 3
OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement, its score on draws that did not choose it, and how many times as fast the requests came there."""

    placement: Placement
    score: Score
    multiple: float = 1.0

    @property
    def usd_per_hour(self) -> float:
        return self.placement.usd_per_hour


@dataclass(slots=True)
class Planner:
    """One search for the most attainment or the least cost. `seed` is the first draw; those of the final scores follow it.
    `known` are placements that are simulated in any case, such as the present one."""

    search: CandidateSearch
    scorer: Scorer
    aims: PlanningAims
    time_s: float
    seed: int = 0
    known: Sequence[Placement] = ()
    on_progress: OnProgress = lambda what: None
    chosen: dict[Placement, Plan] = field(default_factory=dict)
    load: float = 1.0

    def plans(self) -> list[Plan]:
        """The finalists, the best first; empty if no placement is within the budget."""
        began = monotonic()
        self.on_progress("searching candidates")
        known = [each for each in self.known if self.aims.feasible(each)]
        candidates = list(dict.fromkeys([*known, *self.candidates(_CANDIDATES)]))
        if not candidates:
            return []
        simulating, before = monotonic(), self.scorer.simulations

        def each_s() -> float:
            return (monotonic() - simulating) / (self.scorer.simulations - before)

        def time_for(simulations: int) -> bool:
            left_s = self.time_s - (monotonic() - began)
            return (simulations + self.final_simulations()) * each_s() < left_s

        self.simulate(candidates[:_FINALISTS])
        further = candidates[_FINALISTS:]
        hurried = each_s() > _LONG_S and not time_for(len(further))
        if further and not hurried:
            self.simulate(further)
        self._lighten(lambda: time_for(_CHANGES))
        self._improve(lambda: time_for(_CHANGES))
        finalists = self._ranked()[: _HURRIED_FINALISTS if hurried else _FINALISTS]
        self.on_progress(f"scoring {len(finalists)} finalists")
        seeds = range(self.seed + 1, self.seed + 1 + _DRAWS)
        plans = self.final(finalists, seeds)
        for _ in range(_DEARER if self.aims.objective == "cost" else 0):
            dearer = self._dearer([plan.placement for plan in plans])
            if not dearer or any(plan.score.attainment >= self.aims.target for plan in plans):
                break
            plans += self.final(dearer, seeds)
        return sorted(plans, key=self.rank, reverse=True)[:_FINALISTS]

    # --- what an objective may do otherwise ---------------------------------------------------------------
    @property
    def multiple(self) -> float:
        """How many times as fast requests come in the search for changes."""
        return self.load

    def candidates(self, count: int) -> list[Placement]:
        until = monotonic() + _SEARCH_SHARE * self.time_s
        found = [self.search.candidates(count, _LOADS[0])]
        found += [self.search.candidates(count, load) for load in _LOADS[1:] if monotonic() < until]
        return in_turn(found)[:count]

    @property
    def smaller_loads(self) -> Sequence[float]:
        """Smaller loads than those of `candidates`, the largest first."""
        return _SMALLER_LOADS

    def simulate(self, placements: Sequence[Placement]) -> None:
        """Score placements on the first draw."""
        scores = self.scorer.scores(placements, [self.seed])
        self.chosen.update((each, Plan(each, score)) for each, score in zip(placements, scores, strict=True))

    def final(self, placements: Sequence[Placement], seeds: Sequence[int]) -> list[Plan]:
        """Score placements on other draws."""
        scores = self.scorer.scores(placements, seeds)
        return [Plan(each, score) for each, score in zip(placements, scores, strict=True)]

    def final_simulations(self) -> int:
        """How many simulations the final scores take."""
        return _FINALISTS * _DRAWS

    def rank(self, plan: Plan) -> tuple[float, ...]:
        """Larger is better."""
        usd, attainment = plan.usd_per_hour, plan.score.attainment
        if self.aims.objective == "cost":
            reached = attainment >= self.aims.target
            return (1.0, -usd, attainment) if reached else (0.0, attainment, -usd)
        return (round(attainment / STEP), -usd, -(plan.score.ttft_s_p95 or 0.0))

    # -------------------------------------------------------------------------------------------------------
    def _ranked(self) -> list[Placement]:
        return sorted(self.chosen, key=lambda each: self.rank(self.chosen[each]), reverse=True)

    def _dearer(self, scored: Sequence[Placement]) -> list[Placement]:
        """The next placements by price, of each price that which attained the most on the first draw, if no cheaper one and
        none of `scored` attained more there."""

        def attained(placement: Placement) -> float:
            return self.chosen[placement].score.attainment

        usd, most = max(each.usd_per_hour for each in scored), max(map(attained, scored))
        found: list[Placement] = []
        for each in sorted(self.chosen, key=lambda each: (each.usd_per_hour, -attained(each))):
            if each.usd_per_hour > usd and attained(each) >= most:
                found.append(each)
                usd, most = each.usd_per_hour, attained(each)
        return found[:_FINALISTS]

    def _lighten(self, more: Callable[[], bool]) -> None:
        """Simulate candidates for smaller loads until cheaper ones are no better. Then changes are for the last of these loads."""
        for load in self.smaller_loads:
            best = self._ranked()[0]
            if not best.usd_per_hour or not more():
                return
            found = self.search.candidates(_CHANGES, load)
            self.simulate([each for each in found if each not in self.chosen])
            better = self._ranked()[0] != best
            if better or self.load < 1.0:
                self.load = load
            if not better and any(each.usd_per_hour < best.usd_per_hour for each in found):
                return

    def _improve(self, more: Callable[[], bool]) -> None:
        """Simulate changes of the best placement, the most promising first, and of the next best one when all of its
        changes are known."""
        exhausted: set[Placement] = set()
        changes: dict[Placement, list[Placement]] = {}
        while more():
            open_ = [each for each in self._ranked()[:_FINALISTS] if each not in exhausted]
            if not open_:
                return
            best = open_[0]
            if best not in changes:
                changes[best] = self.search.neighbours(best, self.multiple)[:_NEIGHBOURS]
            batch = [each for each in changes[best] if each not in self.chosen][:_CHANGES]
            if not batch:
                exhausted.add(best)
                continue
            self.on_progress(f"{len(self.chosen)} placements simulated")
            self.simulate(batch)
