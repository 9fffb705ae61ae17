"""Several replicas, of which one decides at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from policies.scaling.types import ModelLoad, Observation, PoolLoad
from router.scaling.load import Totals
from router.scaling.turns import Turn, Turns
from router.store.memory_state import MemoryState
from router.store.state import StateError, StateHealth

OBSERVATION = Observation(1000.0, 15.0, {"p": PoolLoad(ready=1, in_flight=3)}, {"m": ModelLoad(7, queued=2)})


class SharedState(MemoryState):
    """One document store of several replicas. Their copies may be behind; `away`: it does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas: list[Turns] = []
        self.silent = self.away = False

    @property
    def health(self) -> StateHealth:
        return StateHealth(shared=True)

    async def change(self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        if self.away:
            raise StateError("no answer")
        await super().change(document, edit)
        if not self.silent:
            for each in self.replicas:
                each.document_changed(self._documents[document])


class World:
    """Two replicas, `a` and `b`, with a lease of 10 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = SharedState()
        self.seen: list[Turn] = []
        self.a, self.b = (Turns(self.state, run, 10.0, self.seen.append, lambda: self.now) for run in "ab")
        self.state.replicas = [self.a, self.b]


def turn(of: Turns, run: str, **settings: Any) -> Turn:
    return Turn(of.last.number + 1, run, OBSERVATION, {"p": 2}, {run: {"m": Totals(9)}}, **settings)


async def test_who_decided_last_decides_next() -> None:
    world = World()
    a, b = world.a, world.b
    assert a.due
    assert b.due
    assert await a.take(turn(a, "a"))
    assert (a.mine, a.due, b.mine, b.due) == (True, True, False, False)
    assert world.seen == [a.last]  # what the other gets is what was decided, observation and totals too
    assert b.last == a.last


async def test_a_replica_that_decides_no_more_is_followed_by_another() -> None:
    world = World()
    a, b = world.a, world.b
    await a.take(turn(a, "a"))
    world.now = 10.0
    assert not b.due
    world.now = 10.1
    assert b.due
    assert await b.take(turn(b, "b"))
    assert (a.mine, b.mine, a.due) == (False, True, False)


async def test_two_at_the_same_time() -> None:
    world = World()
    a, b = world.a, world.b
    world.state.silent = True
    assert await a.take(turn(a, "a"))
    assert not await b.take(turn(b, "b"))  # it has not heard of the first one, which stays
    assert b.last == a.last


async def test_one_that_leaves_lets_another_decide_at_once() -> None:
    world = World()
    a, b = world.a, world.b
    await a.take(turn(a, "a"))
    await a.leave()
    assert (a.mine, b.due, b.last.wanted) == (False, True, {"p": 2})


async def test_without_the_shared_state_nobody_decides() -> None:
    world = World()
    await world.a.take(turn(world.a, "a"))
    world.state.away = True
    before = world.a.last
    with pytest.raises(StateError):
        await world.a.take(turn(world.a, "a"))
    assert world.a.last == before


def test_a_document_that_cannot_be_read_is_no_turn() -> None:
    world = World()
    world.a.document_changed({"number": "many"})
    assert world.a.last == Turn()


@pytest.mark.parametrize("number", [7, "many"])
async def test_a_document_that_cannot_be_read_is_replaced(number: Any) -> None:
    """Another version of Headway may have left it."""
    world = World()
    a = world.a
    await world.state.change("scaling", lambda _: {"number": number, "run": "other", "totals": 5})
    world.now = 10.1
    assert a.due
    assert await a.take(turn(a, "a"))
    assert world.b.last == a.last


async def test_who_decides_in_another_version_keeps_the_lease() -> None:
    world = World()
    a = world.a
    await a.take(turn(a, "a"))
    await world.state.change("scaling", lambda seen: {**seen, "number": 2, "run": "other", "totals": 5})
    assert (a.mine, a.due, a.last.number) == (False, False, 2)
    world.now = 10.1
    assert a.due
