"""A schedule that is written down beforehand, and what comes of it: instances know nothing of each other, so it is served instance
by instance, by the engines of the simulator. A search changes one instance's part at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from copy import copy
from math import inf
from typing import NamedTuple

from backends.engine import QueueFull
from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.simulator import Arrival
from benchmarks.workloads.published import grouped
from router.core.settlement import tpot_s

#: Checkpoints are made after so many jobs.
_JOBS_APART = 6
#: And so many are kept: the search goes forward in time, and seldom far back.
_KEPT = 64
#: Those who are there when a new answer ends are watched for so many seconds more.
_WATCHED_S = 20.0


class Job(NamedTuple):
    """The request at place `request` of the workload goes to `attempt`'s candidate at `submit_s`. Jobs sort by when
    they are submitted."""

    submit_s: float
    request: int
    attempt: KnownAttempt


class Served(NamedTuple):
    """Times on the workload's clock."""

    first_s: float
    end_s: float
    output_tokens: int


class Completion(NamedTuple):
    """The progress of a request at an instance: its times so far, and whether it has ended."""

    request: int
    served: Served
    ended: bool


def met(arrival: Arrival, served: Served) -> bool:
    """Whether an answer kept the SLO of its request; true without one."""
    request = arrival.request
    if request.slo is None:
        return True
    ttft_s = served.first_s - request.arrived_at
    e2e_s = served.end_s - request.arrived_at
    return request.slo.met(ttft_s, tpot_s(ttft_s, e2e_s, served.output_tokens), e2e_s)


class LoneEngine:
    """The instance at place `instance`, which serves jobs in order of their submission, with `max_concurrency` as the
    router keeps it: those beyond wait outside, first come first served. A loss ends all that it has, and until it is back
    it takes nothing: such jobs are never completed."""

    def __init__(self, truth: Truth, instance: int) -> None:
        self.engine = truth.fleet.engines()[truth.fleet.names[instance]]
        most = truth.instances[instance].max_concurrency
        self.most = inf if most is None else most
        self._losses = truth.losses(instance)
        self._next_loss = 0
        self._back_at = -inf
        self.inside: dict[int, tuple[float, int]] = {}  # first token (NaN: none yet) and tokens, by request
        self.outside: deque[tuple[Job, Arrival]] = deque()

    def copy(self) -> LoneEngine:
        """One in the same state, which then goes its own way."""
        copied = copy(self)
        for name in ("engine", "inside", "outside"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def next_at(self) -> float:
        """When something happens by itself; infinite when idle."""
        due = self.engine.next_at()
        lost_at = self._lost_at()
        return lost_at if due is None else min(due, lost_at)

    def _lost_at(self) -> float:
        return self._losses[self._next_loss].at_s if self._next_loss < len(self._losses) else inf

    def away(self, now: float) -> bool:
        """Whether it is lost at `now` (seconds on the workload's clock)."""
        return now < self._back_at

    def submit(self, job: Job, arrival: Arrival, now: float) -> list[Completion]:
        """Take a job, in the engine or outside it. What is due at this very moment is handed out before, as the
        simulator does it: the engine would end its step within, and tell of it one step late."""
        completed = self.advance(now) if self.next_at() <= now else []
        self._take(job, arrival, now)
        return completed

    def _take(self, job: Job, arrival: Arrival, now: float) -> None:
        if self.away(now):
            return
        if len(self.inside) >= self.most:
            self.outside.append((job, arrival))
            return
        attempt = job.attempt
        # The engine cuts a prompt by itself, so it gets the one of the request.
        prompt = arrival.request.prompt_tokens if attempt.cut_prompt else attempt.prompt_tokens
        try:
            self.engine.submit(
                str(job.request), attempt.model, prompt, attempt.output_tokens, arrival.prefix_hashes, now
            )
        except QueueFull:
            self.outside.append((job, arrival))
        else:
            self.inside[job.request] = (inf, 0)

    def advance(self, now: float) -> list[Completion]:
        """Requests that got their first token or ended by `now`."""
        found = []
        for progress in self.engine.advance(now):
            index = int(progress.seq_id)
            first_s, tokens = self.inside[index]
            first_s, tokens = min(first_s, now), tokens + progress.new_tokens
            ended = progress.finished is not None
            if ended:
                del self.inside[index]
                if self.outside:
                    self._take(*self.outside.popleft(), now)
            else:
                self.inside[index] = (first_s, tokens)
            found.append(Completion(index, Served(first_s, now, tokens), ended))
        if now >= self._lost_at():
            self._lose()
        return found

    def _lose(self) -> None:
        loss = self._losses[self._next_loss]
        self._next_loss += 1
        self._back_at = loss.at_s + loss.for_s
        self.engine.restart()
        self.inside.clear()
        self.outside.clear()


class _Checkpoint(NamedTuple):
    """The engine before job number `taken` is submitted, and before anything after `at_s`."""

    at_s: float
    taken: int
    state: LoneEngine


class Lane:
    """One instance's part of a schedule, which may change: simulated up to some moment, with checkpoints to go back to. `jobs`
    are in order. `served` has the times of each that has ended by the last simulation, and `met` whether it kept its SLO: a
    loss of the instance leaves out those that it ended."""

    def __init__(self, truth: Truth, instance: int, jobs: Iterable[Job]) -> None:
        self.truth = truth
        self.instance = instance
        self.jobs = sorted(jobs)
        self.served: dict[int, Served] = {}
        self.met: dict[int, bool] = {}
        self._empty = _Checkpoint(-inf, 0, LoneEngine(truth, instance))
        self._checkpoints = [self._empty]

    def run(self) -> None:
        """Simulate all anew, to the end."""
        self.rewind()
        self.served, self.met = {}, {}
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
                    self.served[index] = served
                    self.met[index] = met(self.truth.arrivals[index], served)

    def change(self, remove: Job | None = None, add: Job | None = None) -> None:
        """Change the schedule. What comes after is simulated anew when it is asked for."""
        at_s = min(job.submit_s for job in (remove, add) if job is not None)
        if remove is not None:
            del self.jobs[bisect_left(self.jobs, remove)]
            self.served.pop(remove.request, None)
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


def serve(truth: Truth, schedule: Iterable[Job]) -> dict[int, Served]:
    """Serve a whole schedule from empty engines to its last answer: the times of each request."""
    by_instance = grouped(schedule, lambda job: job.attempt.instance)
    found: dict[int, Served] = {}
    for instance, jobs in sorted(by_instance.items()):
        lane = Lane(truth, instance, jobs)
        lane.run()
        found |= lane.served
    return found


def _too_late(arrival: Arrival, served: Served) -> bool:
    """Whether a first token has missed its target."""
    slo = arrival.request.slo
    return (
        slo is not None
        and slo.ttft_s is not None
        and served.first_s - arrival.request.arrived_at > slo.ttft_s
    )
