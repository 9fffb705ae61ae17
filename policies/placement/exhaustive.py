"""Every placement: the reference for planners on small clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, combinations_with_replacement, groupby, islice, product
from math import comb, prod

from policies.placement.candidates import mixed_groups
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, ScoredPlacement
from policies.placement.types import Cluster, Group, Model, Placement, Shape


def exhaustive(
    cluster: Cluster,
    models: Sequence[Model],
    evaluate: Evaluator,
    *,
    most: int = 100_000,
) -> ScoredPlacement | None:
    """The best of all placements, partly filled ones too. None where there are more than `most`."""
    fit = Fit(models)
    if count_placements(cluster, fit, most) > most:
        return None
    return max(map(evaluate.scored, placements(cluster, fit)), key=lambda plan: plan.outcome.rank)


def count_placements(cluster: Cluster, fit: Fit, most: int) -> int:
    """How many placements there are; any number above `most` where there are more."""
    contents: dict[Shape, int] = {}
    total = 0
    for division in mixed_groups(cluster):
        ways = []
        for shape, count in _runs(division):
            if shape not in contents:
                contents[shape] = sum(1 for _ in islice(_contents(shape, fit), most + 1))
            ways.append(comb(contents[shape] + count - 1, count))
        total += prod(ways)
        if total > most:
            break
    return total


def placements(cluster: Cluster, fit: Fit) -> Iterator[Placement]:
    """Every valid placement once, whatever the order of its groups."""
    contents: dict[Shape, list[Group]] = {}
    for division in mixed_groups(cluster):
        choices = []
        for shape, count in _runs(division):
            if shape not in contents:
                contents[shape] = list(_contents(shape, fit))
            choices.append(combinations_with_replacement(contents[shape], count))
        for chosen in product(*map(list, choices)):
            yield Placement(tuple(chain.from_iterable(chosen))).sorted()


def _runs(division: Placement) -> list[tuple[Shape, int]]:
    return [(shape, len(list(same))) for shape, same in groupby(group.shape for group in division)]


def _contents(shape: Shape, fit: Fit) -> Iterator[Group]:
    models = [model for model in range(len(fit.models)) if fit.allows(Group(shape), model)]
    for count in range(len(models) + 1):
        for chosen in combinations(models, count):
            if fit.holds(shape, chosen):
                yield Group(shape, chosen)
