"""Headway's planner: unlike groups, and local search from the best starts.

AlpaServe divides a cluster into equal groups and never takes a replica back. Here every division into groups of powers of two is
filled greedily (where there are too many, equal groups only), beside random placements. The best of unlike divisions are improved by
single changes (a replica added, dropped, replaced, moved or exchanged; a group reshaped, split or merged with another) as long as one
of them helps; then the best one has some of its groups emptied and filled anew at random, is improved again, and is kept if that
helped (iterated local search, Lourenço, Martin and Stützle, 2003). AlpaServe's greedy plan is among the starts, so the result is never
worse than it in the same simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from policies.placement.alpaserve import Plan, greedy
from policies.placement.attainment_bound import most_servable
from policies.placement.candidates import count_mixed_groups, equal_groups, mixed_groups, shapes
from policies.placement.changes import group_changes, replica_changes
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator
from policies.placement.random_search import filled, random_placement
from policies.placement.types import DEFAULT_LIMITS, Cluster, Group, Limits, Model, Placement


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to search. `divisions`: the most divisions of the cluster that are all tried; `random_starts`: random placements
    beside them; `climbs`: how many starts, each of another division, are improved; `kicks`: how often the best one is changed at
    random; `evaluations`: the most placements looked at in all."""

    divisions: int = 300
    random_starts: int = 300
    climbs: int = 4
    kicks: int = 30
    evaluations: int = 20_000


DEFAULT_EFFORT = Effort()


def local_search(
    cluster: Cluster,
    models: Sequence[Model],
    evaluate: Evaluator,
    random: Random,
    *,
    limits: Limits = DEFAULT_LIMITS,
    effort: Effort = DEFAULT_EFFORT,
    known: Sequence[Placement] = (),
) -> Plan:
    """The best plan found. `known`: placements to start from too, for example the one that runs now."""
    search = _Search(
        Fit(models),
        evaluate,
        random,
        limits,
        evaluate.evaluations + effort.evaluations,
        most_servable(cluster, models, evaluate.arrivals.counts),
    )
    return search.run(cluster, effort, known)


@dataclass(frozen=True, slots=True)
class _Search:
    fit: Fit
    evaluate: Evaluator
    random: Random
    limits: Limits
    last: int  # stop when the evaluator has counted so many
    bound: int  # no placement serves more requests

    def run(self, cluster: Cluster, effort: Effort, known: Sequence[Placement]) -> Plan:
        filled_divisions = (
            greedy(start, self.fit, self.evaluate)
            for start in _divisions(cluster, self.limits, effort.divisions)
        )
        drawn = (
            random_placement(cluster, self.fit, self.random, self.limits) for _ in range(effort.random_starts)
        )
        starts = [self.plan(each) for each in (*known, *filled_divisions, *drawn) if self.fit.valid(each)]
        best = max(
            map(self.climb, _unlike(sorted(starts, key=_rank, reverse=True), effort.climbs)), key=_rank
        )
        for _ in range(effort.kicks):
            if self.evaluate.evaluations >= self.last or sum(best.outcome.good) >= self.bound:
                break
            best = max(best, self.climb(self.plan(self.kicked(best.placement))), key=_rank)
        return best

    def plan(self, placement: Placement) -> Plan:
        ordered = placement.sorted()
        return Plan(ordered, self.evaluate(ordered))

    def climb(self, plan: Plan) -> Plan:
        """Take the first change that helps, until none does."""
        while (better := self.better(plan)) is not None:
            plan = better
        return plan

    def better(self, plan: Plan) -> Plan | None:
        changed = list(dict.fromkeys(each.sorted() for each in self.neighbours(plan.placement)))
        self.random.shuffle(changed)
        for each in changed:
            if self.evaluate.evaluations >= self.last:
                break
            outcome = self.evaluate(each)
            if outcome.rank > plan.outcome.rank:
                return Plan(each, outcome)
        return None

    def neighbours(self, placement: Placement) -> Iterator[Placement]:
        yield from replica_changes(placement, self.fit)
        yield from group_changes(placement, self.fit, self.limits, self.evaluate.arrivals.counts)

    def kicked(self, placement: Placement) -> Placement:
        """One or two groups with another shape and other models."""
        groups = list(placement.groups)
        for place in self.random.sample(range(len(groups)), min(len(groups), self.random.choice((1, 2)))):
            old = groups[place].shape
            shape = self.random.choice(shapes(old.kind, old.gpus, self.limits))
            groups[place] = filled(Group(shape), self.fit, self.random)
        return Placement(tuple(groups))


def _divisions(cluster: Cluster, limits: Limits, most: int) -> list[Placement]:
    if count_mixed_groups(cluster, limits) <= most:
        return list(mixed_groups(cluster, limits))
    return equal_groups(cluster, limits)[:most]


def _unlike(plans: Iterable[Plan], count: int) -> list[Plan]:
    """The first plan of each division, up to `count`."""
    found: dict[tuple[str, ...], Plan] = {}
    for plan in plans:
        division = tuple(sorted(str(group.shape) for group in plan.placement))
        if len(found) < count:
            found.setdefault(division, plan)
    return list(found.values())


def _rank(plan: Plan) -> tuple[int, float, int]:
    return plan.outcome.rank
