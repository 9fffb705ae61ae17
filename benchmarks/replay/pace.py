"""Open loop: each request at its own time, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.replay.client import Target, body_of, send, slo_of, wire_for
from benchmarks.replay.row import Row
from benchmarks.replay.wire import Wire
from benchmarks.workloads.format import WorkloadRequest

#: Between the start and the first request: time to prepare, so that the first one is not late.
LEAD_S = 0.1


@dataclass(slots=True)
class Progress:
    """The progress of a run, reported whenever a request is sent or has ended."""

    sent: int = 0
    ended: int = 0
    complete: int = 0

    @property
    def in_flight(self) -> int:
        return self.sent - self.ended


async def replay(
    requests: Iterable[WorkloadRequest],
    target: Target,
    *,
    max_in_flight: int | None = None,
    on_row: Callable[[Row], None],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Send `requests` (sorted by arrival) to `target`; `on_row` gets each one that has ended. With `max_in_flight`, a
    request that finds all places taken waits for one and is recorded as sent late. One that is cancelled drops what is in
    flight."""
    async with wire_for(target) as wire:
        pacer = Pacer(wire, target, on_row, on_progress, max_in_flight)
        await pacer.run(requests, time.perf_counter() + LEAD_S)


@dataclass(slots=True)
class Pacer:
    """One run: the loop that waits for the next arrival, and the tasks of what is in flight. `body` makes a request's body."""

    wire: Wire
    target: Target
    on_row: Callable[[Row], None]
    on_progress: Callable[[Progress], None] = lambda _: None
    max_in_flight: int | None = None
    body: Callable[[WorkloadRequest, Target], bytes] = body_of
    progress: Progress = field(default_factory=Progress, init=False)
    _places: asyncio.Semaphore | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.max_in_flight:
            self._places = asyncio.Semaphore(self.max_in_flight)

    async def run(self, requests: Iterable[WorkloadRequest], start_at: float) -> None:
        """Returns when every request has ended. `start_at` is on `time.perf_counter`. A fault of our own in one of them ends
        the run."""
        speed, clock = self.target.speed, time.perf_counter
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                # The body is made before its time has come.
                body = self.body(request, self.target)
                scheduled_at = start_at + request.arrival_s / speed
                await asyncio.sleep(max(0.0, scheduled_at - clock()))
                # Timers of whole milliseconds may wake us too early.
                while clock() < scheduled_at:  # noqa: ASYNC110 (less than a millisecond)
                    await asyncio.sleep(0)
                if self._places is not None:
                    await self._places.acquire()
                row = Row(
                    id=request.id,
                    scheduled_s=request.arrival_s,
                    sent_s=(clock() - start_at) * speed,
                    slo=slo_of(request, self.target),
                )
                self.progress.sent += 1
                self.on_progress(self.progress)
                tasks.create_task(self._one(row, body, scheduled_at))

    async def _one(self, row: Row, body: bytes, scheduled_at: float) -> None:
        try:
            await send(self.wire, self.target, row, body, scheduled_at)
        finally:
            if self._places is not None:
                self._places.release()
        self.progress.ended += 1
        self.progress.complete += row.complete
        self.on_row(row)
        self.on_progress(self.progress)
