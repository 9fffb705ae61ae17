"""What is to be done with the instances of a pool so that it has as many as wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class PoolState(NamedTuple):
    """The instances of a pool. `ready` and `draining`: those that the actuator may stop, with their requests in flight.
    `fixed`: the number of ready ones that it may not stop. `starting`: the number of its own."""

    ready: Mapping[str, int]
    draining: Mapping[str, int]
    fixed: int = 0
    starting: int = 0


class Steps(NamedTuple):
    """Take back into service, start so many, give up so many that are starting, drain."""

    keep: Sequence[str] = ()
    start: int = 0
    abandon: int = 0
    drain: Sequence[str] = ()


def steps(wanted: int, pool: PoolState) -> Steps:
    """The steps to `wanted` instances. To grow, draining ones come back first: they are warm. To shrink, those that are
    starting go first, then those with the least requests. The last instance goes only when it is idle."""
    present = len(pool.ready) + pool.fixed + pool.starting
    if wanted >= present:
        back = sorted(pool.draining, key=lambda name: (-pool.draining[name], name))[: wanted - present]
        return Steps(keep=back, start=wanted - present - len(back))
    excess = present - wanted
    abandon = min(excess, pool.starting)
    drain = sorted(pool.ready, key=lambda name: (pool.ready[name], name))[: excess - abandon]
    left = len(pool.ready) + pool.fixed - len(drain)
    if drain and not left and pool.ready[drain[-1]]:
        drain.pop()
    return Steps(abandon=abandon, drain=drain)
