"""Changes of a placement that planners try: each leads from a valid placement to a valid one. Of equal groups only the first
is changed, and beside it the first other one: another would give an equal placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.placement.candidates import shapes
from policies.placement.memory import Fit
from policies.placement.types import Group, Placement, Shape


def replica_changes(placement: Placement, fit: Fit) -> Iterator[Placement]:
    """Add, drop or replace one replica, move one to another group, or exchange two."""
    models, groups = range(len(fit.models)), placement.groups
    for place in _unlike(groups):
        group, others = groups[place], _unlike(groups, apart_from=place)
        for model in models:
            if fit.allows(group, model):
                yield placement.replacing(place, group.adding(model))
        for old in group.models:
            smaller = group.dropping(old)
            yield placement.replacing(place, smaller)
            for new in models:
                if new != old and fit.allows(smaller, new):
                    yield placement.replacing(place, smaller.adding(new))
            without = placement.replacing(place, smaller)
            for other in others:
                if fit.allows(groups[other], old):
                    yield without.replacing(other, groups[other].adding(old))
                if other > place:
                    yield from _exchanges(without, place, old, other, fit)


def _exchanges(without: Placement, place: int, old: int, other: int, fit: Fit) -> Iterator[Placement]:
    """Model `old`, taken from the group at `place`, against each model of another group."""
    group, target = without.groups[place], without.groups[other]
    for new in target.models:
        if new != old and fit.allows(group, new) and fit.allows(target.dropping(new), old):
            changed = without.replacing(place, group.adding(new))
            yield changed.replacing(other, target.dropping(new).adding(old))


def group_changes(placement: Placement, fit: Fit, wanted: Sequence[float]) -> Iterator[Placement]:
    """Give one group another shape, split one, or merge two. `wanted`: how much each model is to be kept where not
    all fit."""
    groups = placement.groups
    for place in _unlike(groups):
        group = groups[place]
        kind, gpus = group.shape.kind, group.shape.gpus
        for shape in shapes(kind, gpus):
            if shape != group.shape:
                yield placement.replacing(place, holding(shape, group.models, fit, wanted))
        if gpus > 1:
            for shape in shapes(kind, gpus // 2):
                first = holding(shape, group.models, fit, wanted)
                left = [model for model in group.models if model not in first.models]
                second = holding(shape, (*left, *first.models), fit, wanted, first=left)
                yield placement.replacing(place, first, second)
    for one in _unlike(groups):
        for other in _unlike(groups, apart_from=one):
            group, second = groups[one], groups[other]
            if other < one or group.shape.kind != second.shape.kind or group.shape.gpus != second.shape.gpus:
                continue
            union = tuple(sorted({*group.models, *second.models}))
            for shape in shapes(group.shape.kind, 2 * group.shape.gpus):
                merged = holding(shape, union, fit, wanted)
                rest = placement.replacing(other)
                yield rest.replacing(one, merged)


def _unlike(groups: Sequence[Group], apart_from: int | None = None) -> list[int]:
    """The place of the first of each of the unlike groups, apart from one place."""
    first: dict[Group, int] = {}
    for place, group in enumerate(groups):
        if place != apart_from:
            first.setdefault(group, place)
    return list(first.values())


def holding(
    shape: Shape, models: Sequence[int], fit: Fit, wanted: Sequence[float], first: Sequence[int] = ()
) -> Group:
    """A group with as many of these models as fit: those in `first`, then the most wanted."""
    group = Group(shape)
    for model in sorted(models, key=lambda each: (each not in first, -wanted[each], each)):
        if fit.allows(group, model):
            group = group.adding(model)
    return group
