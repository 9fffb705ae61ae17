"""One instance's part of a schedule under search: simulated up to some moment, with checkpoints to go back to."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from benchmarks.oracles.schedule import Job, LoneEngine, Served, met
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import Arrival

#: Checkpoints are made after so many jobs.
_JOBS_APART = 6
#: And so many are kept: the search goes forward in time, and seldom far back.
_KEPT = 64
#: Those who are there when a new answer ends are watched for so many seconds more.
_WATCHED_S = 20.0


class _Checkpoint(NamedTuple):
    """The engine before job number `taken` is submitted, and before anything after `at_s`."""

    at_s: float
    taken: int
    state: LoneEngine


class Lane:
    """`jobs` are in order. `met` says of each job that has ended by the last simulation whether it kept its
    SLO: a loss of the instance leaves out those that it ended."""

    def __init__(self, truth: Truth, instance: int, jobs: Iterable[Job]) -> None:
        self.truth = truth
        self.instance = instance
        self.jobs = sorted(jobs)
        self.met: dict[int, bool] = {}
        self._empty = _Checkpoint(-inf, 0, LoneEngine(truth, instance))
        self._checkpoints = [self._empty]

    def run(self) -> None:
        self.rewind()
        self.met = {}
        self.reach(inf)

    def rewind(self) -> None:
        """The search starts again at the beginning."""
        self._checkpoints = [self._empty]

    def reach(self, until_s: float) -> None:
        """Simulate to `until_s`, making checkpoints and telling `met` on the way."""
        last = self._checkpoints[-1]
        if last.at_s >= until_s:
            return
        lone, jobs, taken = last.state.copy(), self.jobs, last.taken
        since = 0
        while True:
            due = lone.next_at()
            job = jobs[taken] if taken < len(jobs) else None
            if job is not None and job.submit_s <= due:
                if since >= _JOBS_APART:
                    self._checkpoints.append(_Checkpoint(job.submit_s, taken, lone.copy()))
                    if len(self._checkpoints) > _KEPT:
                        del self._checkpoints[1 : _KEPT // 2]
                    since = 0
                if job.submit_s >= until_s:
                    return
                completed = lone.submit(job, self.truth.arrivals[job.request], job.submit_s)
                taken += 1
                since += 1
            elif due >= until_s:
                return
            else:
                completed = lone.advance(due)
            for index, served, ended in completed:
                if ended:
                    self.met[index] = met(self.truth.arrivals[index], served)

    def change(self, remove: Job | None = None, add: Job | None = None) -> None:
        """Change the schedule. What comes after is simulated anew when it is asked for."""
        at_s = min(job.submit_s for job in (remove, add) if job is not None)
        if remove is not None:
            del self.jobs[bisect_left(self.jobs, remove)]
            self.met.pop(remove.request, None)
        if add is not None:
            insort(self.jobs, add)
        while self._checkpoints[-1].at_s >= at_s:
            self._checkpoints.pop()

    def gain(self, remove: Job | None = None, add: Job | None = None, least: int = 1) -> int | None:
        """By how many more jobs the SLOs would be kept if `add` came in and `remove` went, as those see it who
        are there while `add` is served; None as soon as it is clear that it is below `least`. Those that come
        later feel little of it; what they feel is seen when the whole schedule is served."""
        at_s = min(job.submit_s for job in (remove, add) if job is not None)
        self.reach(at_s)
        # The last one that a change at `at_s` leaves as it is.
        checkpoint = self._checkpoints[bisect_left(self._checkpoints, at_s, key=lambda each: each.at_s) - 1]
        lone, jobs, taken = checkpoint.state.copy(), self.jobs, checkpoint.taken
        arrivals, known = self.truth.arrivals, self.met
        total = 0 if remove is None else -known.get(remove.request, True)
        pending, hope = add, add is not None
        until_s = inf if add is not None else at_s + _WATCHED_S
        while True:
            job = jobs[taken] if taken < len(jobs) else None
            if job is not None and job is remove:
                taken += 1
                continue
            if pending is not None and (job is None or pending < job):
                job = pending
            due = lone.next_at()
            if job is not None and job.submit_s <= due:
                completed = lone.submit(job, arrivals[job.request], job.submit_s)
                if job is pending:
                    pending, hope = None, not lone.away(job.submit_s)
                else:
                    taken += 1
            elif due > until_s or due == inf:
                return total if total >= least else None
            else:
                completed = lone.advance(due)
            for index, served, ended in completed:
                if add is not None and index == add.request:
                    if ended:
                        total += met(arrivals[index], served)
                        hope = False
                        until_s = served.end_s + _WATCHED_S
                    elif _too_late(arrivals[index], served):
                        hope = False
                elif ended:
                    total += met(arrivals[index], served) - known.get(index, True)
            if total + hope < least:
                return None


def _too_late(arrival: Arrival, served: Served) -> bool:
    """Whether a first token has missed its target."""
    slo = arrival.request.slo
    return (
        slo is not None
        and slo.ttft_s is not None
        and served.first_s - arrival.request.arrived_at > slo.ttft_s
    )
