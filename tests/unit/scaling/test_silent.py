"""Instances that do not answer leave the fleet after a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.gateway.fleet.overlay import Edit
from router.scaling.processes import Processes


class World:
    """One engine's instance, `p-0`, which does not answer. `removed` counts how often it was to leave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.removed = 0.0, 0
        monkeypatch.setattr("router.scaling.processes.time.monotonic", lambda: self.now)
        self.overlay = SimpleNamespace(added=(SimpleNamespace(name="p-0"),))
        instances = {"p-0": SimpleNamespace(healthy=False)}
        gateway = SimpleNamespace(
            changes=SimpleNamespace(overlay=self.overlay, edit=self.edit),
            runner=SimpleNamespace(scheduler=SimpleNamespace(instances=instances)),
        )
        self.actuator = Processes(cast(Any, gateway), cast(Any, None))

    async def edit(self, _: Edit) -> None:
        self.removed += 1

    async def look(self, at_s: float) -> int:
        self.now = at_s
        await self.actuator.look({"p": cast(Any, SimpleNamespace(name="p", has=lambda _: True))})
        return self.removed


async def test_it_leaves_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert [await world.look(at_s) for at_s in (0.0, 29.0, 30.0)] == [0, 0, 1]


async def test_only_the_time_counts_that_it_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.look(0.0)
    world.actuator.stand_back()  # another replica decides meanwhile
    assert [await world.look(at_s) for at_s in (1000.0, 1029.0)] == [0, 0]
    added, world.overlay.added = world.overlay.added, ()
    await world.look(1029.5)  # it has left
    world.overlay.added = added  # the next one of this name
    assert [await world.look(at_s) for at_s in (1040.0, 1069.0, 1070.0)] == [0, 0, 1]
