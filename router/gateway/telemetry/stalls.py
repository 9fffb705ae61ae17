"""Measures how long callbacks hold the event loop, by a timer that notices how late it runs.

While one callback runs, the process serves nothing else. The loop calls `StallWatch` every `interval_s`; if the call is
late, something held the loop for that time. This costs one timer, and nothing for each request.
"""

from __future__ import annotations

import asyncio
import time

from router.core.histogram import Histogram

STALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: `recent_s` covers one to two of these windows.
WINDOW_S = 60.0


class StallWatch:
    """Measures stalls of the event loop in which it is started. A stall is measured up to `interval_s` too short."""

    def __init__(self, interval_s: float = 0.02) -> None:
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = self._window_ends_at = 0.0
        self._window_s = self._window_before_s = 0.0
        self.histogram = Histogram(STALL_BUCKETS)

    @property
    def recent_s(self) -> float:
        """The longest stall of the last one to two minutes."""
        return max(self._window_s, self._window_before_s)

    def start(self) -> None:
        """Start measuring in the running loop."""
        self.stop()
        self._wait(asyncio.get_running_loop(), time.monotonic())

    def stop(self) -> None:
        """Stop measuring; the results stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self._due_at = now + self._interval_s
        self._timer = loop.call_later(self._interval_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        stall_s = max(0.0, now - self._due_at)
        if now >= self._window_ends_at:
            stale = now >= self._window_ends_at + WINDOW_S
            self._window_before_s = 0.0 if stale else self._window_s
            self._window_s, self._window_ends_at = 0.0, now + WINDOW_S
        self._window_s = max(self._window_s, stall_s)
        self.histogram.observe(stall_s)
        self._wait(loop, now)
