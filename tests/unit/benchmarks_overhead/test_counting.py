"""Counting what a piece of code does."""

from __future__ import annotations

import asyncio

import numpy as np

from benchmarks.overhead.counting import Counter

COUNTER = Counter()


def empty() -> None:
    """Nothing is done here."""


def test_calls_of_python_and_of_c_count() -> None:
    base = COUNTER.count(empty)
    more = COUNTER.count(lambda: [empty(), len("a"), abs(-1)])
    assert (more.calls - base.calls, more.numpy, more.awaits) == (3, 0, 0)


def test_numpy_is_told_apart_ufuncs_and_methods_included() -> None:
    values = np.arange(4.0)
    assert COUNTER.count(lambda: (np.exp(values), values.sum(), np.clip(values, 0, 1))).numpy >= 3
    assert np.exp.nin == 1  # ufuncs are themselves again


def test_steps_of_coroutines_count() -> None:
    loop = asyncio.new_event_loop()

    async def twice() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def never() -> None:
        """Does not wait."""

    try:
        with_steps = COUNTER.count(lambda: loop.run_until_complete(twice()))
        without = COUNTER.count(lambda: loop.run_until_complete(never()))
    finally:
        loop.close()
    assert with_steps.awaits >= without.awaits + 2


def test_allocations_count_even_where_they_are_freed_at_once() -> None:
    def allocate() -> None:
        for _ in range(100):
            bytes(1000)

    assert COUNTER.count(allocate).allocations >= COUNTER.count(empty).allocations + 100
