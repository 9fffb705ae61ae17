"""Random placements: the baseline for planners with the same number of simulations."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.placement.candidates import group_sizes, shapes
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.types import Cluster, Group, Model, Placement


def random_search(
    cluster: Cluster, models: Sequence[Model], evaluate: Evaluator, random: Random, evaluations: int
) -> Outcome:
    """The best of this many random placements, at least one."""
    fit = Fit(models)
    drawn = (random_placement(cluster, fit, random) for _ in range(max(1, evaluations)))
    return max(map(evaluate, drawn), key=lambda plan: plan.rank)


def random_placement(cluster: Cluster, fit: Fit, random: Random) -> Placement:
    """Groups of random size and shape, filled with random models until nothing fits."""
    groups = []
    for pool in cluster.pools:
        left = pool.gpus
        while left:
            size = random.choice([size for size in group_sizes(pool, left) if shapes(pool.kind, size)])
            left -= size
            groups.append(filled(Group(random.choice(shapes(pool.kind, size))), fit, random))
    return Placement(tuple(groups)).sorted()


def filled(group: Group, fit: Fit, random: Random) -> Group:
    """A group with random models added until nothing fits."""
    while choice := [model for model in range(len(fit.models)) if fit.allows(group, model)]:
        group = group.adding(random.choice(choice))
    return group
