"""The most requests that any placement can serve, by memory alone: all requests for a set of models that fits.

The set with the most requests is a 0-1 knapsack over the memory of all GPUs together. Branch and bound with the fractional
bound (Dantzig 1957) solves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.memory import Fit
from policies.placement.types import Cluster, Model, Shape


def most_servable(cluster: Cluster, models: Sequence[Model], counts: Sequence[int]) -> int:
    """An upper bound of the requests that can be served, from their counts by model."""
    fit = Fit(models)
    kinds = [pool.kind for pool in cluster.pools]
    free_gb = sum(pool.gpus * pool.kind.budget_gb for pool in cluster.pools)
    items = [
        (models[model].gb, count)
        for model, count in enumerate(counts)
        if any(fit.runs(Shape(kind), model) for kind in kinds)
    ]
    items.sort(key=lambda item: item[1] / item[0], reverse=True)
    return _knapsack(items, free_gb)


def _knapsack(items: Sequence[tuple[float, int]], free_gb: float) -> int:
    best = 0
    stack = [(0, free_gb, 0)]
    while stack:
        place, left_gb, value = stack.pop()
        best = max(best, value)
        if place == len(items) or value + _fractional(items, place, left_gb) <= best:
            continue
        gb, count = items[place]
        stack.append((place + 1, left_gb, value))
        if gb <= left_gb:
            stack.append((place + 1, left_gb - gb, value + count))
    return best


def _fractional(items: Sequence[tuple[float, int]], place: int, left_gb: float) -> float:
    total = 0.0
    for gb, count in items[place:]:
        if gb > left_gb:
            return total + count * left_gb / gb
        total += count
        left_gb -= gb
    return total
