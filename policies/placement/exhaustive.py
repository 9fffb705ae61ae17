"""Every placement: the reference for planners on small clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, combinations_with_replacement, groupby, islice, product
from math import comb, prod

from policies.placement.candidates import mixed_groups
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.types import Cluster, Group, Model, Placement, Shape


def exhaustive(
    cluster: Cluster, models: Sequence[Model], evaluate: Evaluator, *, most: int = 100_000
) -> Outcome | None:
    """The best of all placements, partly filled ones too. None where there are more than `most`."""
    found = placements(cluster, Fit(models), most)
    return None if found is None else max(map(evaluate, found), key=lambda plan: plan.rank)


def placements(cluster: Cluster, fit: Fit, most: int) -> list[Placement] | None:
    """Every valid placement once, whatever the order of its groups; None where there are more than `most`."""
    mixed = mixed_groups(cluster, most)
    if mixed is None:
        return None
    contents: dict[Shape, list[Group]] = {}
    total = 0
    divisions = list(map(_runs, mixed))
    for runs in divisions:
        for shape, _ in runs:
            if shape not in contents:
                contents[shape] = list(islice(_contents(shape, fit), most + 1))
        total += prod(comb(len(contents[shape]) + count - 1, count) for shape, count in runs)
        if total > most:
            return None
    return [
        Placement(tuple(chain.from_iterable(chosen))).sorted()
        for runs in divisions
        for chosen in product(
            *(combinations_with_replacement(contents[shape], count) for shape, count in runs)
        )
    ]


def _runs(division: Placement) -> list[tuple[Shape, int]]:
    return [(shape, len(list(same))) for shape, same in groupby(group.shape for group in division)]


def _contents(shape: Shape, fit: Fit) -> Iterator[Group]:
    models = [model for model in range(len(fit.models)) if fit.allows(Group(shape), model)]
    for count in range(len(models) + 1):
        for chosen in combinations(models, count):
            if fit.holds(shape, chosen):
                yield Group(shape, chosen)
