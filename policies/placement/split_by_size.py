"""AlpaServe's split by size: models of unlike size get GPUs of their own, so that short requests do not wait behind
long ones.

Li et al., OSDI '23, section 4.2; github.com/alpa-projects/mms (`enumerate_separations`, `solve_separation_placement`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import combinations, pairwise
from math import comb

from policies.placement.alpaserve import alpaserve, score
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.types import Cluster, Model, Placement, Pool, Shape

#: A model joins the first class whose first member takes as long on one GPU, within this share.
SAME_SIZE = 0.38
#: At most so many divisions of the GPUs are tried: those whose throughput is most like the classes' share of requests.
DIVISIONS = 100
#: If there are more divisions than this, only those in parts of 2, 4, 8, ... GPUs are looked at: many GPUs and classes have billions.
_LOOKED_AT = 200_000


def split_by_size(pool: Pool, models: Sequence[Model], evaluate: Evaluator) -> Outcome | None:
    """The best plan of those that give each class of models its own part of a pool. None with one class, or with
    too many classes for the GPUs."""
    one_gpu = Shape(pool.kind)
    seconds = [evaluate.stage_s(model, one_gpu) for model in range(len(models))]
    classes = size_classes(seconds)
    if not 1 < len(classes) <= pool.gpus:
        return None
    plans = []
    for parts in _divisions(pool.gpus, classes, seconds, evaluate.arrivals.counts):
        groups = [
            group
            for gpus, members in zip(parts, classes, strict=True)
            for group in alpaserve(
                Cluster((Pool(pool.kind, gpus, pool.node_gpus),)), models, evaluate, only=frozenset(members)
            ).placement
        ]
        plans.append(evaluate(Placement(tuple(groups)).sorted()))
    return max(plans, key=score, default=None)


def size_classes(seconds: Sequence[float]) -> list[list[int]]:
    """Models by class, from what a request takes on one GPU."""
    classes: list[list[int]] = []
    for model, own in enumerate(seconds):
        for members in classes:
            first = seconds[members[0]]
            if abs(own - first) / first < SAME_SIZE:
                members.append(model)
                break
        else:
            classes.append([model])
    return classes


def _divisions(
    gpus: int, classes: list[list[int]], seconds: Sequence[float], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    asked = [sum(counts[model] for model in members) for members in classes]
    total = sum(asked) or 1

    def distance(parts: tuple[int, ...]) -> float:
        rates = [part / seconds[members[0]] for part, members in zip(parts, classes, strict=True)]
        return max(abs(count / total - rate / sum(rates)) for count, rate in zip(asked, rates, strict=True))

    return nsmallest(DIVISIONS, _compositions(gpus, len(classes)), key=distance)


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    unit = 1
    while comb(total // unit - 1, parts - 1) > _LOOKED_AT:
        unit *= 2
    for cuts in combinations(range(unit, total // unit * unit, unit), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(after - before for before, after in pairwise(edges))
