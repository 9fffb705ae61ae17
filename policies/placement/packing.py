"""Places one replica of every model on a cluster. It tests whether the models fit at all."""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.candidates import every_shape, group_sizes, shapes
from policies.placement.memory import Fit
from policies.placement.types import Cluster, Group, Model, Placement, Pool, Shape

#: After this many tries a set of models counts as not fitting.
_TRIES = 20_000


def pack(models: Sequence[Model], cluster: Cluster) -> Placement | None:
    """A placement with one replica of every model; None if there is none (or none was found)."""
    most_gb = sum(
        each.gpus * max(each.kind.budget_gb, each.kind.llamacpp_gb or 0.0) for each in cluster.pools
    )
    if sum(model.gb for model in models) > most_gb:
        return None
    if any(model.alone for model in models):
        return _pack_apart(models, cluster)
    return _pack_together(models, cluster)


def _pack_together(models: Sequence[Model], cluster: Cluster) -> Placement | None:
    """In the largest groups: models that fit into two groups of equal GPUs also fit into one group of both."""
    groups = [Group(shape) for pool in cluster.pools for shape in _largest_groups(pool)]
    fit = Fit(models)
    order = sorted(range(len(models)), key=lambda model: -models[model].gb)
    tries = _TRIES

    def place_rest(placement: Placement, done: int) -> Placement | None:
        nonlocal tries
        tries -= 1
        if done == len(order):
            return placement
        model = order[done]
        seen = set()
        for place, group in enumerate(placement.groups):
            if tries > 0 and group not in seen and fit.allows(group, model):
                seen.add(group)
                found = place_rest(placement.replacing(place, group.adding(model)), done + 1)
                if found is not None:
                    return found
        return None

    return place_rest(Placement(tuple(groups)), 0)


def _pack_apart(models: Sequence[Model], cluster: Cluster) -> Placement | None:
    """Each model in a group of its own, the smallest that holds it. Groups of powers of two GPUs always fit into a pool that
    has enough GPUs left."""
    fit = Fit(models)
    smallest = [
        [
            min(holding, key=lambda shape: (shape.gpus, shape.pipeline), default=None)
            for pool in cluster.pools
            for holding in [[each for each in every_shape(pool) if fit.holds(each, [model])]]
        ]
        for model in range(len(models))
    ]
    order = sorted(range(len(models)), key=lambda model: -models[model].gb)
    tries = _TRIES

    def place_rest(left: tuple[int, ...], done: int) -> tuple[Group, ...] | None:
        nonlocal tries
        tries -= 1
        if done == len(order):
            return ()
        model = order[done]
        for place, shape in enumerate(smallest[model]):
            if tries > 0 and shape is not None and shape.gpus <= left[place]:
                rest = (*left[:place], left[place] - shape.gpus, *left[place + 1 :])
                found = place_rest(rest, done + 1)
                if found is not None:
                    return (Group(shape, (model,)), *found)
        return None

    groups = place_rest(tuple(pool.gpus for pool in cluster.pools), 0)
    return None if groups is None else Placement(groups)


def _largest_groups(pool: Pool) -> list[Shape]:
    found = []
    left = pool.gpus
    for gpus in reversed(group_sizes(pool, pool.gpus)):
        if possible := shapes(pool.kind, gpus):
            # Short pipelines divide layers more evenly.
            found += [possible[0]] * (left // gpus)
            left %= gpus
    return found
