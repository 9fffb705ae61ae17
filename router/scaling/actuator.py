"""What carries the decisions of a scaler out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from router.config import PoolConfig


class Actuator(Protocol):
    """Starts and stops instances. Only the deciding replica calls `scale`."""

    #: Called when an instance has come or gone, so that the next decision is made soon.
    on_change: Callable[[], None]

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        """A decision is about to be made: learn what there is."""
        ...

    def starting(self, pool: str) -> int:
        """The number of a pool's instances that are starting."""
        ...

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        """Begin to give each pool as many instances as wanted. Does not wait until they are ready or gone. Instances of
        other pools leave."""
        ...

    async def aclose(self) -> None:
        """The gateway stops."""
        ...


class Observe:
    """Does nothing: others read the decisions, from the metrics or from `GET /admin/scaling`."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        pass

    def starting(self, pool: str) -> int:
        return 0

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        pass

    async def aclose(self) -> None:
        pass
