"""A schedule that is written down beforehand, and what comes of it: instances know nothing of each other, so it is served instance
by instance, by the engines of the simulator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy
from math import inf
from typing import NamedTuple

from backends.engine import QueueFull
from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.simulator import Arrival
from router.core.settlement import tpot_s


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


def serve(truth: Truth, schedule: Iterable[Job]) -> dict[int, Served]:
    """Serve a whole schedule from empty engines to its last answer: the times of each request."""
    by_instance: list[list[Job]] = [[] for _ in truth.instances]
    for job in sorted(schedule):
        by_instance[job.attempt.instance].append(job)
    found: dict[int, Served] = {}
    for instance, jobs in enumerate(by_instance):
        lone = LoneEngine(truth, instance)
        coming = deque(jobs)
        while coming or lone.inside:
            due = lone.next_at()
            if coming and coming[0].submit_s <= due:
                job = coming.popleft()
                completed = lone.submit(job, truth.arrivals[job.request], job.submit_s)
            else:
                completed = lone.advance(due)
            found.update((index, served) for index, served, ended in completed if ended)
    return found
