"""Writes of several steps leave together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from backends import writes
from backends.writes import EndOfTurn, together, write


class Wire:
    """A transport, and what has left it."""

    def __init__(self, log: list[bytes]) -> None:
        self.log = log
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.log.append(data)


def wire(log: list[bytes]) -> Any:
    return cast(asyncio.Transport, Wire(log))


def test_a_write_outside_of_steps_and_of_a_single_step_leaves_at_once() -> None:
    log: list[bytes] = []
    to = wire(log)
    write(to, b"a")
    assert log == [b"a"]
    seen: list[int] = []
    together([lambda: (write(to, b"b"), seen.append(len(log)))])
    assert seen == [2]


def test_the_writes_of_several_steps_leave_after_the_last_one_in_their_order() -> None:
    log: list[bytes] = []
    to, other = wire(log), wire(log)
    seen: list[int] = []
    steps: list[Callable[[], object]] = [
        partial(write, to, b"a"),
        partial(write, other, b"b"),
        lambda: seen.append(len(log)),
        partial(write, to, b"c"),
    ]
    together(steps)
    assert seen == [0]
    assert log == [b"a", b"b", b"c"]
    write(to, b"d")
    assert log[-1] == b"d"


def test_steps_that_take_long_do_not_keep_the_writes_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(writes, "perf_counter", lambda: now)
    log: list[bytes] = []
    seen: list[int] = []

    def step(number: int) -> None:
        nonlocal now
        seen.append(len(log))
        write(wire(log), b"%d" % number)
        now += 0.0006

    together([partial(step, number) for number in range(5)])
    assert seen == [0, 0, 2, 2, 4]
    assert len(log) == 5


def test_a_step_that_fails_does_not_keep_the_others_from_their_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[bytes] = []
    together([partial(write, wire(log), b"a"), partial(int, "x"), partial(write, wire(log), b"b")])
    assert log == [b"a", b"b"]
    assert "a step of a request failed" in caplog.text


def test_nothing_is_written_to_a_connection_that_was_closed_meanwhile() -> None:
    log: list[bytes] = []
    to = wire(log)

    def close() -> None:
        to.closing = True

    together([partial(write, to, b"a"), close])
    assert log == []


async def test_the_end_of_a_turn_takes_what_the_turn_has_added() -> None:
    log: list[bytes] = []
    to, end = wire(log), EndOfTurn()
    end.add(partial(write, to, b"a"))
    end.add(lambda: end.add(partial(write, to, b"b")))
    assert log == []
    await asyncio.sleep(0)
    assert log == [b"a"]
    await asyncio.sleep(0)
    assert log == [b"a", b"b"]
