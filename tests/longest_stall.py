"""The longest stall of an event loop, for tests."""

from __future__ import annotations

import asyncio
import time

from router.gateway.telemetry.stalls import StallWatch


class LongestStall(StallWatch):
    """`longest_s` is the longest stall since `start` or `reset`, in wall time. `longest_busy_s` counts only the processor time
    that this process used in each stall, which is the better measure on a shared machine."""

    longest_s = longest_busy_s = _busy_s = 0.0

    def reset(self) -> None:
        """Forget the longest stall and measure anew."""
        self.longest_s = self.longest_busy_s = 0.0
        self.start()

    def _wait(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        super()._wait(loop, now)
        self._busy_s = time.process_time()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        stall_s = max(0.0, time.monotonic() - self._due_at)
        self.longest_s = max(self.longest_s, stall_s)
        self.longest_busy_s = max(self.longest_busy_s, min(stall_s, time.process_time() - self._busy_s))
        super()._tick(loop)
