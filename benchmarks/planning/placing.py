"""Which GPUs of the cluster each group of a plan takes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.planning.problem import PlanningProblem, gpu_kind
from policies.placement.types import Group, Placement

#: GPUs of one block: the place of their pool in the cluster, and their places in the pool.
Block = tuple[int, range]


def place(gpus: int, node_gpus: int, sizes: Sequence[int]) -> list[range]:
    """The GPUs of each block, in a pool of so many GPUs in nodes of `node_gpus`. A block stays in a node, or begins with an
    empty node and takes whole nodes. Large blocks come first, each in the first node that has room. Blocks whose sizes are
    powers of two always fit, if the pool has enough GPUs. Raises ValueError if there is no room."""
    free = [min(node_gpus, gpus - first) for first in range(0, gpus, node_gpus)]
    capacity = list(free)
    found: dict[int, range] = {}
    for block in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        size = sizes[block]
        nodes = -(-size // node_gpus)
        for node in range(len(free) - nodes + 1):
            taken = slice(node, node + nodes)
            if sum(free[taken]) >= size and (nodes == 1 or free[taken] == capacity[taken]):
                break
        else:
            raise ValueError(f"no room for {size} GPUs in nodes of {node_gpus}")
        first = node * node_gpus + capacity[node] - free[node]
        found[block] = range(first, first + size)
        for each in range(node, node + nodes):
            part = min(size, free[each])
            free[each] -= part
            size -= part
    return [found[block] for block in range(len(sizes))]


def placed(problem: PlanningProblem, placement: Placement) -> list[tuple[Group, list[Block]]]:
    """Each group with its GPUs: one block, or a block for each stage of a group of unlike GPUs. Groups are in the order of
    the pools, large ones first."""
    pools = problem.cluster_config.pools
    sizes: list[list[int]] = [[] for _ in pools]
    wanted: list[tuple[Group, list[tuple[int, int]]]] = []
    for group in _ordered(problem, placement):
        blocks = []
        for pool, size in _blocks(problem, group):
            blocks.append((pool, len(sizes[pool])))
            sizes[pool].append(size)
        wanted.append((group, blocks))
    ranges = [place(pool.gpus, pool.node_gpus, own) for pool, own in zip(pools, sizes, strict=True)]
    return [(group, [(pool, ranges[pool][at]) for pool, at in blocks]) for group, blocks in wanted]


def _ordered(problem: PlanningProblem, placement: Placement) -> list[Group]:
    return [
        group
        for kind in dict.fromkeys(pool.kind for pool in problem.cluster.pools)
        for group in sorted(placement, key=lambda each: (-each.shape.gpus, each.models))
        if group.shape.kind == kind
    ]


def _blocks(problem: PlanningProblem, group: Group) -> list[tuple[int, int]]:
    """The pool and the number of GPUs of each block."""
    unlike = problem.unlike_of(group)
    if unlike is None:
        kinds = [gpu_kind(pool) for pool in problem.cluster_config.pools]
        return [(kinds.index(group.shape.kind), group.shape.gpus)]
    return [(pool, stage.gpus) for pool, stage in zip(unlike.pools, unlike.stages, strict=True)]
