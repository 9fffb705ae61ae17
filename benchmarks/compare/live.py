"""`headway compare --url`: policies one after another against a live gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import aiohttp

from benchmarks.compare.gateway import Gateway
from benchmarks.compare.runs import RunFolder
from benchmarks.compare.summary import live_summary
from benchmarks.replay import pace
from benchmarks.replay.client import Target
from benchmarks.replay.command import replay_progress
from benchmarks.replay.row import Row
from benchmarks.workloads.format import WorkloadError, WorkloadRequest

_IDLE_LIMIT_S = 120.0
_REFUSED = (400, 401, 403, 404, 422)


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one rate. `rate_per_s` None is the workload's own rate."""

    policy: str
    rate_per_s: float | None

    @property
    def name(self) -> str:
        return f"{self.policy}@{'own' if self.rate_per_s is None else format(self.rate_per_s, 'g')}"

    def summary(self, started_at: float, rows: Sequence[Row], speed: float) -> dict[str, Any]:
        """What came of it, as a run of the report; it has no seed of its own."""
        about = {"name": self.name, **asdict(self), "seed": None, "started_at": started_at}
        return {**about, **live_summary(rows, speed)}


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """What is to be done, checked. `own_rate_per_s` is the requests' own rate (None: they arrive at once), `settle_s` the
    pause between runs, `warmup` the requests sent first."""

    requests: Sequence[WorkloadRequest]
    own_rate_per_s: float | None
    target: Target
    runs: Sequence[Run]
    warmup: int
    settle_s: float
    max_in_flight: int | None

    def requests_of(self, run: Run) -> Iterator[WorkloadRequest]:
        """The requests with their times scaled to the run's rate."""
        own = self.own_rate_per_s
        factor = 1.0 if run.rate_per_s is None or own is None else own / run.rate_per_s
        return (replace(each, arrival_s=each.arrival_s * factor) for each in self.requests)


async def run_all(
    comparison: LiveComparison,
    folder: RunFolder,
    results: list[dict[str, Any]],
    on_result: Callable[[], None],
) -> None:
    """Do the runs that are not there yet; `results` get the summaries of all, and `on_result` is called after each run."""
    speed = comparison.target.speed
    warm = False
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        gateway = Gateway(session, comparison.target)
        for number, one in enumerate(comparison.runs, start=1):
            if (kept := folder.load(one.name)) is not None:
                rows = [Row(**row) for row in kept["rows"]]
                results.append(one.summary(kept["started_at"], rows, speed))
                continue
            if not warm:
                await gateway.check()
                await _warm_up(comparison, one)
                warm = True
            await _probe(comparison, one)
            if not await gateway.until_idle(settle_s=comparison.settle_s, limit_s=_IDLE_LIMIT_S):
                raise WorkloadError(f"the server is still busy after {_IDLE_LIMIT_S:g} s of waiting")
            what = f"{one.name} ({number} of {len(comparison.runs)})"
            started_at = time.time()
            rows = await _one_run(comparison, one, folder.salt, what)
            # Rows are recorded shortly after their answers have ended.
            await asyncio.sleep(comparison.settle_s)
            await gateway.look_up(rows, ratings=await gateway.until_judged(_IDLE_LIMIT_S))
            folder.save(one.name, {**asdict(one), "started_at": started_at, "rows": rows})
            results.append(one.summary(started_at, rows, speed))
            on_result()


async def _one_run(comparison: LiveComparison, one: Run, salt: str, what: str) -> list[Row]:
    """One policy at one rate."""
    target = replace(comparison.target, policy=one.policy, salt=f"{salt}/{one.name}")
    rows: list[Row] = []
    with replay_progress(len(comparison.requests), what) as on_progress:
        await pace.replay(
            comparison.requests_of(one),
            target,
            max_in_flight=comparison.max_in_flight,
            on_row=rows.append,
            on_progress=on_progress,
        )
    return sorted(rows, key=lambda row: row.scheduled_s)


async def _warm_up(comparison: LiveComparison, one: Run) -> None:
    """The first requests, sent under the first policy and forgotten: connections open, estimates settle."""
    first = islice(comparison.requests_of(one), comparison.warmup)
    target = replace(comparison.target, policy=one.policy, salt="warm-up")
    await pace.replay(first, target, max_in_flight=comparison.max_in_flight, on_row=lambda _: None)


async def _probe(comparison: LiveComparison, one: Run) -> None:
    """One small request: an unknown policy or model is an error at once, in one line."""
    request = WorkloadRequest(id="probe", arrival_s=0.0, prompt_tokens=8, max_tokens=1, output_tokens=1)
    target = replace(comparison.target, policy=one.policy, slo=None)
    rows: list[Row] = []
    await pace.replay([request], target, on_row=rows.append)
    for row in rows:
        if row.status in _REFUSED:
            raise WorkloadError(f"the server refuses policy {one.policy!r}: HTTP {row.status}, {row.error}")
