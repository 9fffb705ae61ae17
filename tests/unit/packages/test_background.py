"""What runs beside requests: any exception is logged once, counted, and survived."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from router import background
from router.background import Tasks, close_all, failures, surviving


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_logged_at", {})
    background._failures.clear()


async def test_a_failure_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for error in (ValueError("a"), ValueError("b"), OverflowError("c")):
        with surviving("round"):
            raise error
    assert failures() == {"round": 3}
    found = [record.getMessage() for record in caplog.records]
    assert found == ["round failed (ValueError); it continues", "round failed (OverflowError); it continues"]


async def test_a_cancellation_is_no_failure() -> None:
    with pytest.raises(asyncio.CancelledError), surviving("round"):
        raise asyncio.CancelledError
    assert not failures()


async def test_a_task_that_fails_is_told_and_the_others_go_on() -> None:
    tasks = Tasks()
    done: list[str] = []

    async def work(name: str) -> None:
        if name == "bad":
            raise RuntimeError(name)
        await asyncio.sleep(0)
        done.append(name)

    for name in ("good", "bad", "better"):
        tasks.start(work(name), f"work {name}")
    await tasks.finish()
    assert done == ["good", "better"]
    assert failures() == {"work": 1}


async def test_tasks_stop_however_they_end() -> None:
    tasks = Tasks()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("while it was stopped")

    tasks.start(stubborn(), "stubborn")
    tasks.start(asyncio.sleep(60), "patient")
    await asyncio.sleep(0)
    await tasks.stop()
    assert failures() == {"stubborn": 1}


async def test_a_shutdown_takes_all_its_steps() -> None:
    taken: list[int] = []

    def step(number: int) -> Any:
        async def close() -> None:
            taken.append(number)
            if number == 1:
                raise RuntimeError

        return close

    await close_all("shutdown", step(0), step(1), step(2))
    assert taken == [0, 1, 2]
    assert failures() == {"shutdown": 1}
