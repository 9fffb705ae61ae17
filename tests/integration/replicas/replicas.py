"""Several gateways in this process over the same emulated engines, one store and one Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.emulator.instance import EmulatedInstance
from tests.integration.gateway.live import Live, fleet_of, live
from tests.servers.redis import RedisServer


@dataclass
class Replicas:
    """`gateways` in the order in which they started."""

    gateways: list[Live]
    engines: dict[str, EmulatedInstance]
    redis: RedisServer
    tmp_path: Path
    instances: list[dict[str, Any]]
    sections: dict[str, Any]
    stack: AsyncExitStack

    async def another(self, environment: Mapping[str, str] | None = None, **sections: Any) -> Live:
        """One more replica, with a fleet file of its own that may say other things."""
        joined = await self.stack.enter_async_context(
            live(
                self.tmp_path,
                environment=environment,
                extra_instances=[dict(each) for each in self.instances],
                **(self.sections | sections),
            )
        )
        self.gateways.append(joined)
        return joined

    async def until(self, condition: Any, within_s: float = 60.0) -> None:
        """Wait until something holds."""
        await self.gateways[0].until(condition, within_s)

    async def joined(self) -> None:
        """Wait until all know of all."""
        count = len(self.gateways)
        await self.until(
            lambda: all(
                gw.gateway.state.health.connected and gw.gateway.state.health.replicas == count
                for gw in self.gateways
            )
        )

    async def quiet(self) -> None:
        """Wait until nobody has anything anywhere, and everybody knows it."""
        await self.until(
            lambda: all(
                each.in_flight == 0 and each.elsewhere.in_flight == 0
                for gw in self.gateways
                for each in gw.instances.values()
            )
        )


@asynccontextmanager
async def replicas(
    tmp_path: Path,
    redis: RedisServer,
    count: int,
    *engines: EmulatedInstance,
    environment: Mapping[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[Replicas]:
    """Start `engines` and `count` gateways over them. `sections` are further parts of the fleet file."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        started = Replicas(
            [],
            {engine.name: engine for engine in engines},
            redis,
            tmp_path,
            fleet_of(engines, sections.pop("instance", {})),
            # All of it runs in one event loop, which a loaded machine may hold up for long.
            {"state": {"url": redis.url, "timeout_ms": 3000}} | sections,
            stack,
        )
        for _ in range(count):
            await started.another(environment)
        await started.joined()
        yield started
