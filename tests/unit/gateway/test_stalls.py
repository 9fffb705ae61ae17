"""Stalls of the event loop are measured by how late a timer runs."""

import asyncio
import time

import uvloop

from router.gateway.telemetry.stalls import STALL_BUCKETS
from tests.longest_stall import LongestStall


def _hold(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_callback_that_holds_the_loop_is_seen() -> None:
    async def work() -> None:
        watch = LongestStall(0.005)
        watch.start()
        await asyncio.sleep(0.02)
        _hold(0.1)
        await asyncio.sleep(0.02)
        assert watch.longest_s >= 0.09
        assert watch.recent_s >= watch.longest_s  # measured a moment later
        assert 0 < watch.longest_busy_s <= watch.longest_s
        assert sum(watch.histogram.counts[STALL_BUCKETS.index(0.05) + 1 :]) >= 1
        watch.stop()
        before = watch.longest_s
        _hold(0.02)
        await asyncio.sleep(0.02)
        assert watch.longest_s == before

    uvloop.run(work())


def test_what_was_before_a_reset_does_not_count() -> None:
    async def work() -> None:
        watch = LongestStall(0.005)
        watch.start()
        await asyncio.sleep(0.02)
        _hold(0.2)
        watch.reset()  # the timer has not run since
        await asyncio.sleep(0.02)
        assert watch.longest_busy_s < 0.1
        watch.stop()

    uvloop.run(work())
