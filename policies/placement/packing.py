"""Places one replica of every model on a cluster, if all of them fit."""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.candidates import every_shape, group_sizes, shapes
from policies.placement.memory import Fit
from policies.placement.types import Cluster, Group, Model, Placement, Pool, Shape

#: After this many tries a set of models that share GPUs counts as not fitting.
_TRIES = 20_000


def pack(models: Sequence[Model], cluster: Cluster) -> Placement | None:
    """A placement with one replica of every model; None if there is none (or none was found). If a model is `alone`, it is the
    cheapest one with a group for each model."""
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
    """Each model in a group of its own, the smallest of a pool that holds it, for the least price: a small integer program. Groups
    of powers of two GPUs always fit into a pool that has enough GPUs left."""
    from scipy.optimize import LinearConstraint, milp

    fit, pools = Fit(models), range(len(cluster.pools))
    options = [
        (model, pool, min(held, key=lambda shape: (shape.gpus, shape.pipeline)))
        for model in range(len(models))
        for pool in pools
        if (held := [shape for shape in every_shape(cluster.pools[pool]) if fit.holds(shape, [model])])
    ]
    if len({model for model, _, _ in options}) < len(models):
        return None
    once = [[float(model == each) for model, _, _ in options] for each in range(len(models))]
    gpus = [[float(shape.gpus * (pool == each)) for _, pool, shape in options] for each in pools]
    found = milp(
        [shape.usd_per_hour for _, _, shape in options],
        integrality=[1] * len(options),
        constraints=[
            LinearConstraint(once, 1.0, 1.0),
            LinearConstraint(gpus, 0.0, [float(pool.gpus) for pool in cluster.pools]),
        ],
    )
    if found.x is None:
        return None
    taken = zip(options, found.x, strict=True)
    groups = tuple(Group(shape, (model,)) for (model, _, shape), share in taken if share > 0.5)
    return Placement(groups).sorted()


def _largest_groups(pool: Pool) -> list[Shape]:
    found = []
    left = pool.gpus
    for gpus in reversed(group_sizes(pool, pool.gpus)):
        if possible := shapes(pool.kind, gpus):
            # Short pipelines divide layers more evenly.
            found += [possible[0]] * (left // gpus)
            left %= gpus
    return found
