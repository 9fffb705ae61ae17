"""Candidates: placements that the fast estimate finds best, from every planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import ceil
from random import Random
from typing import Literal

from benchmarks.planning.estimate import Estimate
from policies.placement.alpaserve import greedy
from policies.placement.candidates import powers_of_two, shapes, some_equal_groups
from policies.placement.changes import group_changes, replica_changes
from policies.placement.local_search import SearchBudget, at_once, local_search
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.split_by_size import split_by_size
from policies.placement.types import Cluster, Group, Placement

Objective = Literal["attainment", "throughput", "cost"]
#: Attainment is compared in steps of this: finer differences are chance, and then the price decides.
STEP = 0.001
#: Divisions of the cluster into equal groups that are filled, many kinds of GPU have millions; and how many requests may be
#: simulated for it.
_STARTS, _STARTS_REQUESTS = 256, 10_000_000
_BUDGET = SearchBudget(
    divisions=100,
    equal_divisions=40,
    random_starts=150,
    kicks=20,
    evaluations=4_000,
    simulated_requests=2_000_000,
)


@dataclass(frozen=True, slots=True)
class PlanningAims:
    """What a placement is to reach: within the budget, an instance of every model, and then the objective. `requests`
    are all that come, `target` is the share of them that is to be in time."""

    objective: Objective
    models: int
    requests: int
    target: float
    budget_usd_per_hour: float | None = None

    def __call__(self, placement: Placement, good: int) -> tuple[float, ...]:
        usd = placement.usd_per_hour
        over = 0.0 if self.budget_usd_per_hour is None else max(0.0, usd - self.budget_usd_per_hour)
        needed = ceil(self.target * self.requests)
        reached = (
            min(good, needed) if self.objective == "cost" else good // max(1, round(STEP * self.requests))
        )
        return -over, len(placement.placed) - self.models, reached, -usd

    def feasible(self, placement: Placement) -> bool:
        """Within the budget, and with every model."""
        return self(placement, 0)[:2] == (0.0, 0)


class RecordingEvaluator(Evaluator):
    """Remembers the rank of each placement."""

    def __init__(self, evaluate: Evaluator) -> None:
        super().__init__(evaluate.arrivals, evaluate.stage_s, evaluate.overheads, evaluate.aims)
        self.ranks: dict[Placement, tuple[float, ...]] = {}

    def __call__(self, placement: Placement) -> Outcome:
        outcome = super().__call__(placement)
        self.ranks[used(placement)] = outcome.rank
        return outcome

    def best(self) -> list[Placement]:
        """All placements met, the best first."""
        return sorted(self.ranks, key=lambda each: self.ranks[each], reverse=True)


def used(placement: Placement) -> Placement:
    """Only the groups with a model, in the order that equal placements share."""
    return Placement(tuple(group for group in placement if group.models)).sorted()


def in_turn(ranked: Sequence[Sequence[Placement]]) -> list[Placement]:
    """The best of each list, then the second ones, and so on; each placement once."""
    found = chain.from_iterable(zip_longest(*ranked))
    return list(dict.fromkeys(each for each in found if each is not None))


def with_free_gpus(placement: Placement, cluster: Cluster, most: int) -> Placement:
    """The placement with the GPUs that it does not use, in groups of at most `most` of them without a model. `most` is a
    power of two."""
    free = []
    for pool in cluster.pools:
        left = pool.gpus - sum(group.shape.gpus for group in placement if group.shape.kind == pool.kind)
        rest = left % most
        sizes = [most] * (left // most) + [size for size in reversed(powers_of_two(rest)) if rest & size]
        free += [Group(shape) for size in sizes for shape in shapes(pool.kind, size)[:1]]
    return Placement((*placement.groups, *free))


@dataclass(frozen=True)
class CandidateSearch:
    """Candidates of one problem."""

    estimate: Estimate
    aims: PlanningAims
    seed: int = 0

    def candidates(self, count: int, multiple: float = 1.0) -> list[Placement]:
        """The best `count` of every way in which requests may choose their models, in turn."""
        found = []
        for chosen in self.estimate.choices():
            evaluate = RecordingEvaluator(self.estimate.evaluator(chosen, self.aims, multiple))
            self._search(evaluate)
            found.append([each for each in evaluate.best() if self.aims.feasible(each)][:count])
        return in_turn(found)[:count]

    def neighbours(self, placement: Placement, multiple: float = 1.0) -> list[Placement]:
        """Single changes of a placement, the most promising first."""
        estimate = self.estimate
        chosen = estimate.choices()[0]
        evaluate = RecordingEvaluator(estimate.evaluator(chosen, self.aims, multiple))
        cluster, fit = estimate.problem.cluster, Fit(estimate.problem.models)
        for most in powers_of_two(max(pool.gpus for pool in cluster.pools)):
            whole = with_free_gpus(placement, cluster, most)
            changes = group_changes(whole, fit, evaluate.arrivals.counts)
            for each in chain(replica_changes(whole, fit), changes):
                if used(each) not in evaluate.ranks:
                    evaluate(each)
        return [each for each in evaluate.best() if self.aims.feasible(each)]

    def _search(self, evaluate: Evaluator) -> None:
        problem = self.estimate.problem
        cluster, models = problem.cluster, problem.models
        fit = Fit(models)
        for start in some_equal_groups(cluster, _STARTS, Random(self.seed)):
            greedy(start, fit, evaluate, at_once(cluster))
            if evaluate.simulated_requests > _STARTS_REQUESTS:
                break
        if len(cluster.pools) == 1:
            split_by_size(cluster.pools[0], models, evaluate)
        local_search(cluster, models, evaluate, Random(self.seed), budget=_BUDGET)
