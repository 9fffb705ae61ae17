"""Ways to divide a cluster into groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, product
from math import prod
from random import Random

from policies.placement.types import Cluster, GpuKind, Group, Placement, Pool, Shape


def shapes(kind: GpuKind, gpus: int) -> list[Shape]:
    """Shapes of this many GPUs, a power of two: pipelines from short to long."""
    return [
        Shape(kind, gpus // pipeline, pipeline)
        for pipeline in powers_of_two(gpus)
        if gpus // pipeline <= kind.max_tensor and pipeline <= kind.max_pipeline
    ]


def powers_of_two(largest: int) -> list[int]:
    """1, 2, 4, ... up to this number."""
    return [1 << power for power in range(largest.bit_length())]


def group_sizes(pool: Pool, gpus: int) -> list[int]:
    """The sizes of groups of at most so many GPUs of a pool, small ones first. A group lies in a node or takes whole
    nodes."""
    return [size for size in powers_of_two(gpus) if size <= pool.node_gpus or size % pool.node_gpus == 0]


def equal_groups(cluster: Cluster) -> list[Placement]:
    """AlpaServe's candidates: each pool in equal groups of a power of two; what is left over as pipelines of (1, 1,
    s), s again powers of two. With several pools, each combination."""
    return list(map(_empty, product(*(_equal_groups(pool) for pool in cluster.pools))))


def some_equal_groups(cluster: Cluster, most: int, random: Random) -> list[Placement]:
    """All of `equal_groups`, or where there are more than `most` (several pools), so many drawn at random."""
    choices = [_equal_groups(pool) for pool in cluster.pools]
    if prod(map(len, choices)) <= most:
        return equal_groups(cluster)
    return [_empty([random.choice(each) for each in choices]) for _ in range(most)]


def _equal_groups(pool: Pool) -> list[list[Shape]]:
    found = []
    for gpus in group_sizes(pool, pool.gpus):
        left = pool.gpus % gpus
        rest = [Shape(pool.kind, 1, size) for size in reversed(powers_of_two(left)) if left & size]
        found += [[shape] * (pool.gpus // gpus) + rest for shape in shapes(pool.kind, gpus)]
    return found


def mixed_groups(cluster: Cluster, most: int) -> list[Placement] | None:
    """Every way to divide a cluster into groups of powers of two, unlike ones too, large groups first. Each once. None where there
    are more than `most`."""
    ways = [list(islice(_mixed_groups(pool), most + 1)) for pool in cluster.pools]
    return list(map(_empty, product(*ways))) if prod(map(len, ways)) <= most else None


def _empty(shapes_of: Iterable[Sequence[Shape]]) -> Placement:
    """Groups of these shapes, pool by pool, without models."""
    return Placement(tuple(map(Group, chain.from_iterable(shapes_of))))


def _mixed_groups(pool: Pool) -> Iterator[list[Shape]]:
    kinds = every_shape(pool)

    def divide(gpus: int, start: int) -> Iterator[list[Shape]]:
        if gpus == 0:
            yield []
        for place in range(start, len(kinds)):
            if kinds[place].gpus <= gpus:
                for rest in divide(gpus - kinds[place].gpus, place):
                    yield [kinds[place], *rest]

    return divide(pool.gpus, 0)


def every_shape(pool: Pool) -> list[Shape]:
    """The shapes of the groups that a pool can have, large groups first."""
    sizes = reversed(group_sizes(pool, pool.gpus))
    return [shape for size in sizes for shape in shapes(pool.kind, size)]
