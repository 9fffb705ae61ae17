"""The best schedule that a search finds which knows all arrivals and lengths beforehand: what can be had.

Requests that keep their SLO are *accepted*; the others wait. "The clairvoyant schedule" in docs/oracles.md has the steps of the
search: insert, exchange, serve all again. Effects are judged on the one instance that changes (`Lane`), since instances know
nothing of each other. The value that is reported is that of serving the final schedule as a whole (`schedule.serve`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from time import monotonic

from benchmarks.oracles.schedule import Job, Lane, met, serve
from benchmarks.oracles.truth import KnownAttempt, Truth

#: A request that fits nowhere at its arrival is tried again after these shares of its TTFT target.
_DELAYS = (0.3, 0.6)
#: Load of replicas is compared over the jobs of so many seconds.
_RECENT_S = 10.0
#: Who makes room came in at most so long before or after.
_NEAR_S = 10.0
#: Of those that take more machine time, so many with most of it are tried on each instance, and as many others.
_TRIED = 2
#: The search ends after so many passes without a gain.
_PATIENCE = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a search goes: changes tried, and seconds (None: no bound; with one, results depend on the
    machine)."""

    evaluations: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule and how many requests keep their SLO when it is served. `refused` are hard ones."""

    met: int
    jobs: tuple[Job, ...]
    refused: tuple[int, ...]
    iterations: int


class _Spent(Exception):
    """The effort is used up."""


def search(
    truth: Truth,
    start: Mapping[int, Job],
    wanted: Mapping[int, Mapping[int, float]],
    effort: Effort,
    seed: int = 0,
) -> Found:
    """Improve on `start` (jobs by request). Deterministic for a given `seed` where `effort` has no seconds."""
    one = _Search(truth, start, wanted, effort, seed)
    one.improve()
    jobs, refused = one.complete()
    served = serve(truth, jobs)
    kept = sum(truth.offered(index) and met(truth.arrivals[index], times) for index, times in served.items())
    return Found(kept, tuple(jobs), refused, one.evaluations)


class _Search:
    def __init__(
        self,
        truth: Truth,
        start: Mapping[int, Job],
        wanted: Mapping[int, Mapping[int, float]],
        effort: Effort,
        seed: int,
    ) -> None:
        self.evaluations = 0
        self._truth = truth
        self._wanted = wanted
        self._effort = effort
        self._rng = Random(seed)
        self._until = None if effort.seconds is None else monotonic() + effort.seconds
        self._counts = [truth.offered(index) for index in range(len(truth.arrivals))]
        self._offered = [index for index, counts in enumerate(self._counts) if counts]
        chosen = dict(start)
        self._lanes = [
            Lane(truth, place, (job for job in chosen.values() if job.attempt.instance == place))
            for place in range(len(truth.instances))
        ]
        self._jobs: dict[int, Job] = chosen
        self._best: dict[int, Job] = {}
        self._best_met = -1

    def improve(self) -> None:
        """Search until nothing is gained or the effort is used up."""
        self._settle()
        for index in [index for index in self._jobs if not self._counts[index]]:
            self._take_out(index)
        self._settle()  # with fewer there, some who were in time may be late
        try:
            self._pass(self._insert)
            self._settle()
            idle = 0
            while idle < _PATIENCE and self._best_met < len(self._offered):
                before = self._best_met
                self._pass(self._insert_or_exchange)
                self._settle()
                idle = 0 if self._best_met > before else idle + 1
        except _Spent:
            self._settle()

    def complete(self) -> tuple[list[Job], tuple[int, ...]]:
        """The jobs of the best schedule, and the indices of refused requests. Of the requests that still wait, those with a
        hard SLO are refused; the others are sent after the end of the schedule."""
        truth = self._truth
        jobs = list(self._best.values())
        end_s = max((each.end_s for each in serve(truth, jobs).values()), default=0.0)
        end_s = max(end_s, *(each.request.arrived_at for each in truth.arrivals))
        refused = []
        busy_s = [0.0] * len(truth.instances)
        for index in range(len(truth.arrivals)):
            if index in self._best:
                continue
            usual = [each for each in truth.attempts[index] if each.usual]
            if not usual or self._is_hard(index):
                refused.append(index)
                continue
            attempt = min(usual, key=lambda each: busy_s[each.instance] + machine_s(truth, each))
            busy_s[attempt.instance] += machine_s(truth, attempt)
            jobs.append(Job(end_s, index, attempt))
        return jobs, tuple(refused)

    def _pass(self, step: Callable[[int], object]) -> None:
        for lane in self._lanes:
            lane.rewind()
        for index in self._offered:
            if index not in self._jobs:
                step(index)

    def _settle(self) -> None:
        """Serve all lanes to the end; keep the schedule if it is the best so far; let those wait who missed."""
        kept = 0
        for lane in self._lanes:
            lane.run()
            kept += sum(in_time for index, in_time in lane.met.items() if self._counts[index])
        if kept > self._best_met:
            self._best_met = kept
            # With soft ones that missed: without them others might be late (a model that they had loaded).
            self._best = {
                index: job
                for index, job in self._jobs.items()
                if self._kept(index) or not self._is_hard(index)
            }
        for index in [index for index in self._jobs if not self._kept(index)]:
            self._take_out(index)

    def _is_hard(self, index: int) -> bool:
        request = self._truth.arrivals[index].request
        return request.hard and request.slo is not None

    def _kept(self, index: int) -> bool:
        return self._lanes[self._jobs[index].attempt.instance].met.get(index, False)

    def _insert(self, index: int) -> bool:
        request = self._truth.arrivals[index].request
        attempts = self._in_order(index)
        delays_s = [0.0]
        if request.slo is not None and request.slo.ttft_s is not None:
            delays_s += [share * request.slo.ttft_s for share in _DELAYS]
        for delay_s in delays_s:
            for attempt in attempts:
                job = Job(request.arrived_at + delay_s, index, attempt)
                if self._gain(attempt.instance, add=job) is not None:
                    self._put_in(job)
                    return True
        return False

    def _insert_or_exchange(self, index: int) -> None:
        if not self._insert(index):
            self._exchange(index)

    def _exchange(self, index: int) -> None:
        arrived_s = self._truth.arrivals[index].request.arrived_at
        for attempt in self._in_order(index):
            lane = self._lanes[attempt.instance]
            own_s = machine_s(self._truth, attempt)
            low = bisect_left(lane.jobs, (arrived_s - _NEAR_S,))
            high = bisect_left(lane.jobs, (arrived_s + _NEAR_S,))
            near = [(machine_s(self._truth, job.attempt), job) for job in lane.jobs[low:high]]
            near = sorted(each for each in near if each[0] > own_s)
            tried = near[-_TRIED:]
            if len(near) > _TRIED:
                tried += self._rng.sample(near[:-_TRIED], min(_TRIED, len(near) - _TRIED))
            job = Job(arrived_s, index, attempt)
            for _, other in tried:
                if self._gain(attempt.instance, remove=other, add=job, least=0) is not None:
                    self._take_out(other.request)
                    self._put_in(job)
                    self._insert(other.request)
                    return

    def _gain(
        self, instance: int, remove: Job | None = None, add: Job | None = None, least: int = 1
    ) -> int | None:
        if self.evaluations >= self._effort.evaluations or (
            self._until is not None and monotonic() > self._until
        ):
            raise _Spent
        self.evaluations += 1
        return self._lanes[instance].gain(remove, add, least)

    def _put_in(self, job: Job) -> None:
        self._jobs[job.request] = job
        self._lanes[job.attempt.instance].change(add=job)

    def _take_out(self, index: int) -> None:
        job = self._jobs.pop(index)
        self._lanes[job.attempt.instance].change(remove=job)

    def _in_order(self, index: int) -> list[KnownAttempt]:
        """A request's attempts in the order in which they are tried."""
        arrived_s = self._truth.arrivals[index].request.arrived_at
        wanted = self._wanted.get(index, {})

        def key(attempt: KnownAttempt) -> tuple[float, float, int, int]:
            jobs = self._lanes[attempt.instance].jobs
            recent = bisect_left(jobs, (arrived_s,)) - bisect_left(jobs, (arrived_s - _RECENT_S,))
            return (
                -round(wanted.get(attempt.instance, 0.0), 3),
                -machine_s(self._truth, attempt),
                recent,
                attempt.instance,
            )

        return sorted((each for each in self._truth.attempts[index] if each.usual), key=key)


def machine_s(truth: Truth, attempt: KnownAttempt) -> float:
    """Seconds of its instance's time that an answer takes."""
    instance = truth.instances[attempt.instance]
    profile = instance.profiles[attempt.model]
    return (
        profile.machine_s(attempt.prompt_tokens, attempt.output_tokens, instance.fixed_slots) / instance.speed
    )
