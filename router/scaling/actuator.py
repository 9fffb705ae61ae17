"""What carries the decisions of a scaler out, and which steps it takes for a pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from router.config import ConfigError, PoolConfig
from router.core.errors import Refusal
from router.gateway.fleet.edits import Edit
from router.gateway.service import Gateway

logger = logging.getLogger("headway")


class Actuator:
    """Starts and stops instances. This one (`observe`) does nothing: others read the decisions, from the metrics or from
    `GET /admin/scaling`. Only the deciding replica calls `look` and `scale`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._draining: set[str] = set()  # instances that this replica drains, not an operator
        #: Called when an instance has come or gone, so that the next decision is made soon.
        self.on_change: Callable[[], None] = lambda: None

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        """A decision is about to be made: learn what there is."""

    def starting(self, pool: str) -> int:
        """The number of a pool's instances that are starting."""
        return 0

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        """Begin to give each pool as many instances as wanted. Does not wait until they are ready or gone. Instances of
        other pools leave."""

    async def aclose(self) -> None:
        """The gateway stops."""

    async def _edit(self, edit: Edit) -> bool:
        """Change the fleet for all replicas; False if that was refused."""
        try:
            await self._gateway.changes.edit(edit)
        except (Refusal, ConfigError) as error:
            logger.warning("the fleet is not scaled now: %s", error)
            return False
        return True


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
