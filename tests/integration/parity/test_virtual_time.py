"""The loop of virtual time keeps what it promises."""

from __future__ import annotations

import asyncio

import pytest

from tests import virtual_time


def test_timers_fire_at_their_very_time_and_in_order() -> None:
    fired: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        times = {"a": 0.1, "b": 0.1 + 1e-15, "c": 1e6, "d": 1e6, "e": 1e6 + 2e-10}

        def fire(name: str) -> None:
            fired.append((name, loop.time()))

        for name, at_s in reversed(times.items()):
            loop.call_at(at_s, fire, name)
        loop.call_at(5.0, fire, "cancelled").cancel()
        await asyncio.sleep(2e6)
        assert loop.time() == 2e6

    virtual_time.run(main())
    assert fired == [("a", 0.1), ("b", 0.1 + 1e-15), ("d", 1e6), ("c", 1e6), ("e", 1e6 + 2e-10)]


def test_time_stands_still_while_there_is_work() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, asyncio.current_task().cancel)  # type: ignore[union-attr]
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == 0.0

    virtual_time.run(main())


def test_timeouts_are_virtual() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 3600.0


def test_a_wait_that_nothing_ends_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(virtual_time.Deadlock):
        virtual_time.run(main())


def test_work_for_threads_is_done_at_once() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 42)

    assert virtual_time.run(main()) == 42
