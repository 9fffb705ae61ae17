"""Headway's planner: unlike groups, and local search from the best starts.

AlpaServe divides a cluster into equal groups and never takes a replica back. Here every division into groups of
powers of two is filled greedily (where there are too many, equal groups only), beside random placements. The best of
unlike divisions are improved by single changes (a replica added, dropped, replaced, moved or exchanged; a group
reshaped, split or merged with another) as long as one of them helps. Then the best one has some of its groups filled
anew at random, is improved again, and is kept if that helped (iterated local search, Lourenço, Martin and Stützle,
2003). On one pool AlpaServe's greedy plan is among the starts, so the result is never worse than it in the same
simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from policies.placement.alpaserve import greedy
from policies.placement.attainment_bound import most_servable
from policies.placement.candidates import mixed_groups, shapes, some_equal_groups
from policies.placement.changes import group_changes, replica_changes
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.random_search import filled, random_placement
from policies.placement.types import Cluster, Group, Model, Placement


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How far to search. A cluster with at most `divisions` divisions has all of them filled, another one `equal_divisions`
    into equal groups. `random_starts`: random placements beside them. `climbs`: the number of starts that are improved, each
    of another division. `kicks`: how often the best plan is changed at random. The search ends after `evaluations`
    placements or `simulated_requests` requests (some 2.5 million a second). Starts take at most half of either."""

    divisions: int = 300
    equal_divisions: int = 60
    random_starts: int = 300
    climbs: int = 4
    kicks: int = 30
    evaluations: int = 20_000
    simulated_requests: int = 8_000_000


DEFAULT_BUDGET = SearchBudget()
_rank = attrgetter("rank")


def local_search(
    cluster: Cluster,
    models: Sequence[Model],
    evaluate: Evaluator,
    random: Random,
    *,
    budget: SearchBudget = DEFAULT_BUDGET,
) -> Outcome:
    """The best plan found."""
    bound = most_servable(cluster, models, evaluate.arrivals.counts)
    search = _Search(Fit(models), evaluate, random, budget, bound)
    return search.run(cluster)


@dataclass(slots=True)
class _Search:
    fit: Fit
    evaluate: Evaluator
    random: Random
    budget: SearchBudget
    bound: int  # no placement serves more requests
    began: tuple[int, int] = field(init=False)  # the evaluator's counts

    def __post_init__(self) -> None:
        self.began = self.evaluate.evaluations, self.evaluate.simulated_requests

    def spent(self, share: float = 1.0) -> bool:
        """Whether this share of the budget is used up."""
        evaluations, simulated = self.began
        return (
            self.evaluate.evaluations - evaluations >= share * self.budget.evaluations
            or self.evaluate.simulated_requests - simulated >= share * self.budget.simulated_requests
        )

    def run(self, cluster: Cluster) -> Outcome:
        starts = []
        for placement in self.starts(cluster):
            starts.append(self.evaluate(placement.sorted()))
            if self.spent(0.5):
                break
        starts.sort(key=_rank, reverse=True)
        # If all requests that memory allows are served, only latency can improve.
        climbs = 1 if self.perfect(starts[0]) else self.budget.climbs
        best = max(map(self.climb, _unlike(starts, climbs)), key=_rank)
        for _ in range(self.budget.kicks):
            if self.spent() or self.perfect(best):
                break
            kicked = self.evaluate(self.kicked(best.placement).sorted())
            best = max(best, self.climb(kicked), key=_rank)
        return best

    def perfect(self, plan: Outcome) -> bool:
        """Whether no placement serves more requests, and there are no other aims."""
        return not plan.aims and sum(plan.good) >= self.bound

    def starts(self, cluster: Cluster) -> Iterator[Placement]:
        divisions = mixed_groups(cluster, self.budget.divisions)
        if divisions is None:
            divisions = some_equal_groups(cluster, self.budget.equal_divisions, self.random)
        for start in divisions:
            yield greedy(start, self.fit, self.evaluate, at_once(cluster))
        for _ in range(self.budget.random_starts):
            yield random_placement(cluster, self.fit, self.random)

    def climb(self, plan: Outcome) -> Outcome:
        """Take the first change that helps, until none does."""
        while (better := self.better(plan)) is not None:
            plan = better
        return plan

    def better(self, plan: Outcome) -> Outcome | None:
        changed = list(dict.fromkeys(each.sorted() for each in self.neighbours(plan.placement)))
        self.random.shuffle(changed)
        for each in changed:
            if self.spent():
                break
            found = self.evaluate(each)
            if found.rank > plan.rank:
                return found
        return None

    def neighbours(self, placement: Placement) -> Iterator[Placement]:
        yield from replica_changes(placement, self.fit)
        yield from group_changes(placement, self.fit, self.evaluate.arrivals.counts)

    def kicked(self, placement: Placement) -> Placement:
        """One or two groups with another shape and other models."""
        groups = list(placement.groups)
        for place in self.random.sample(range(len(groups)), min(len(groups), self.random.choice((1, 2)))):
            old = groups[place].shape
            shape = self.random.choice(shapes(old.kind, old.gpus))
            groups[place] = filled(Group(shape), self.fit, self.random)
        return Placement(tuple(groups))


def at_once(cluster: Cluster) -> int:
    """How many replicas a greedy plan of this cluster adds for each simulation: some 32 simulations fill it."""
    return max(1, cluster.gpus // 32)


def _unlike(plans: Iterable[Outcome], count: int) -> list[Outcome]:
    """The first plan of each division, up to `count`."""
    found: dict[tuple[str, ...], Outcome] = {}
    for plan in plans:
        division = tuple(sorted(str(group.shape) for group in plan.placement))
        if len(found) < count:
            found.setdefault(division, plan)
    return list(found.values())
