"""Carries out the decisions of a scaler, step by step for each pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from router.config import ConfigError, PoolConfig
from router.core.errors import Refusal
from router.gateway.fleet.overlay import Edit, scaling
from router.gateway.service import Gateway

logger = logging.getLogger("headway")


class Actuator:
    """Starts and stops instances. This class itself (`observe`) does nothing: operators read the decisions in the metrics or
    in `GET /admin/scaling`. Only the deciding replica calls `look` and `scale`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: Called when an instance has come or gone, so that the next decision is made soon.
        self.on_change: Callable[[], None] = lambda: None

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        """Read the state of the pools before a decision."""

    def starting(self, pool: str) -> int:
        """The number of a pool's instances that are starting."""
        return 0

    def stand_back(self) -> None:
        """Another replica decides now, which does not know what this one starts: it is not started."""

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        """Start or drain instances until each pool has the wanted number. Does not wait until they are ready or gone.
        Instances of other pools leave."""

    async def aclose(self) -> None:
        """The gateway stops."""

    async def _edit(self, edit: Edit) -> bool:
        """Change the fleet for all replicas; False if the change is refused."""
        try:
            await self._gateway.changes.edit(edit)
        except (Refusal, ConfigError) as error:
            logger.warning("the fleet is not scaled now: %s", error)
            return False
        return True

    async def _keep_and_drain(self, todo: Steps) -> None:
        """Take the steps that only change the fleet."""
        if todo.keep or todo.drain:
            await self._edit(scaling(todo.keep, todo.drain))


class PoolState(NamedTuple):
    """The instances of a pool. `ready` and `draining` have those that the actuator may stop, with their requests in flight.
    `fixed` counts the ready ones that it may not stop, `starting` the ones that it has started. `silent` are those of `ready`
    that do not answer their probe."""

    ready: Mapping[str, int]
    draining: Mapping[str, int]
    fixed: int = 0
    starting: int = 0
    silent: Collection[str] = ()


class Steps(NamedTuple):
    """Instances to take back into service, to start (a number), to stop while they start (a number), and to drain."""

    keep: Sequence[str] = ()
    start: int = 0
    abandon: int = 0
    drain: Sequence[str] = ()


def steps(wanted: int, pool: PoolState) -> Steps:
    """The steps to `wanted` instances. A pool grows by its draining instances first, because they are warm. It shrinks by its
    starting instances first, then by silent ones, then by those with the fewest requests. The last instance goes only when it is idle."""
    present = len(pool.ready) + pool.fixed + pool.starting
    if wanted >= present:
        back = sorted(pool.draining, key=lambda name: (-pool.draining[name], name))[: wanted - present]
        return Steps(keep=back, start=wanted - present - len(back))
    excess = present - wanted
    abandon = min(excess, pool.starting)
    order = sorted(pool.ready, key=lambda name: (name not in pool.silent, pool.ready[name], name))
    drain = order[: excess - abandon]
    left = len(pool.ready) + pool.fixed - len(drain)
    if drain and not left and pool.ready[drain[-1]]:
        drain.pop()
    return Steps(abandon=abandon, drain=drain)
