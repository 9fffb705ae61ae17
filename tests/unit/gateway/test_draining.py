"""Instances that drain leave when they are idle, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from router.core.errors import Refusal
from router.core.events import DrainChanged
from router.core.types import Outcome
from router.gateway.fleet import draining
from router.gateway.fleet.draining import Drains


@pytest.fixture(autouse=True)
def checked_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_CHECK_S", 0)


async def turns() -> None:
    """Some turns of the event loop."""
    for _ in range(10):
        await asyncio.sleep(0)


class Fleet:
    """A runner, and the fleet that `Drains` changes."""

    def __init__(self, count: int) -> None:
        self.names = [f"i{number}" for number in range(count)]
        self.instances = {name: SimpleNamespace(in_flight=0, draining=False) for name in self.names}
        self.scheduler = self
        self.removed: list[set[str]] = []
        self.refuses = False
        state: Any = SimpleNamespace(health=SimpleNamespace(shared=False))
        runner: Any = self
        self.drains = Drains(runner, state, self.remove)

    def apply(self, event: DrainChanged) -> None:
        self.instances[event.instance].draining = event.draining

    async def remove(self, names: Collection[str]) -> None:
        self.removed.append(set(names))
        if self.refuses:
            raise Refusal(503, "state_unavailable", "later", Outcome.REJECTED_OVERLOAD)
        for name in names:
            del self.instances[name]
        self.drains.follow(frozenset(name for name, each in self.instances.items() if each.draining))

    def drain(self) -> set[str]:
        return {name for name, each in self.instances.items() if each.draining}


async def test_all_that_are_idle_leave_in_one_change_checked_by_one_task() -> None:
    fleet = Fleet(100)
    fleet.instances["i7"].in_flight = 1
    fleet.drains.follow(frozenset(fleet.names[:50]))
    fleet.drains.follow(frozenset(fleet.names[:50]))
    assert len(asyncio.all_tasks()) == 2  # with the test's own
    assert fleet.drain() == set(fleet.names[:50])
    await turns()
    assert fleet.removed == [set(fleet.names[:50]) - {"i7"}]
    fleet.instances["i7"].in_flight = 0
    await turns()
    assert fleet.removed[1:] == [{"i7"}]
    assert len(asyncio.all_tasks()) == 1
    fleet.drains.follow(frozenset({"i60"}))
    await turns()
    assert fleet.removed[2:] == [{"i60"}]
    await fleet.drains.stop()


async def test_one_that_serves_again_stays() -> None:
    fleet = Fleet(3)
    fleet.instances["i0"].in_flight = fleet.instances["i1"].in_flight = 1
    fleet.drains.follow(frozenset({"i0", "i1", "gone"}))
    await turns()
    fleet.drains.follow(frozenset({"i1"}))
    assert fleet.drain() == {"i1"}
    fleet.instances["i0"].in_flight = fleet.instances["i1"].in_flight = 0
    await turns()
    assert fleet.removed == [{"i1"}]
    await fleet.drains.stop()


async def test_a_change_that_is_refused_is_tried_again() -> None:
    fleet = Fleet(2)
    fleet.refuses = True
    fleet.drains.follow(frozenset({"i1"}))
    await turns()
    assert len(fleet.removed) > 1
    fleet.refuses = False
    await turns()
    assert set(fleet.instances) == {"i0"}
    await fleet.drains.stop()
