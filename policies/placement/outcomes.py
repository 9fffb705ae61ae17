"""How well a placement serves a list of requests. Results are cached.

Groups that share no model do not influence each other. So a placement is simulated in parts: sets of groups that are joined
by shared models. A part that was simulated before costs nothing, and a planner mostly changes one part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from policies.placement.simulation import Arrivals, Served, simulate
from policies.placement.types import Group, Placement, Shape

#: From a placement and its number of requests in time: values that count before all else, the most important first. Larger is
#: better.
Aims = Callable[[Placement, int], tuple[float, ...]]
#: The seconds that one stage of a replica of a model takes for a request.
StageTimes = Callable[[int, Shape], float]


@dataclass(frozen=True, slots=True)
class Overheads:
    """AlpaServe's: a stage's time grows by `per_stage` for each stage of its pipeline; `request_s` comes once for
    each request."""

    per_stage: float = 0.009
    request_s: float = 0.011


@dataclass(frozen=True, slots=True)
class Outcome:
    """A placement with what its simulation gave. `good`: requests in time, by model. `mean_latency_s` is over all requests, a
    refused one counting as 0. `sent`: requests that each group was given. `aims`: what counts before these, larger is better."""

    placement: Placement
    requests: int
    good: tuple[int, ...]
    mean_latency_s: float
    sent: tuple[int, ...]
    aims: tuple[float, ...] = ()

    @property
    def attainment(self) -> float:
        """The share of all requests that were in time."""
        return sum(self.good) / self.requests if self.requests else 1.0

    @property
    def rank(self) -> tuple[float, ...]:
        """Larger is better: the aims, requests in time, then a shorter mean latency, then more replicas."""
        return (*self.aims, sum(self.good), -self.mean_latency_s, self.placement.replicas)


@dataclass(slots=True)
class Evaluator:
    """Simulates placements for the same requests. `evaluations` counts calls, `simulated_requests` the requests that were
    simulated for them."""

    arrivals: Arrivals
    stage_s: StageTimes
    overheads: Overheads = Overheads()
    aims: Aims = lambda placement, good: ()  # only the requests in time count
    evaluations: int = 0
    simulated_requests: int = 0
    _parts: dict[tuple[Group, ...], Served] = field(default_factory=dict, repr=False)
    _times: dict[Shape, list[float]] = field(default_factory=dict, repr=False)

    def __call__(self, placement: Placement) -> Outcome:
        """The outcome of one placement."""
        self.evaluations += 1
        good = [0] * self.arrivals.models
        sent = [0] * len(placement.groups)
        latency_s = 0.0
        for part in _parts(placement):
            served = self._served(tuple(placement.groups[place] for place in part))
            for model, count in enumerate(served.good):
                good[model] += count
            for place, count in zip(part, served.sent, strict=True):
                sent[place] = count
            latency_s += served.latency_s
        requests = len(self.arrivals)
        mean_s = latency_s / requests if requests else 0.0
        aims = self.aims(placement, sum(good))
        return Outcome(placement, requests, tuple(good), mean_s, tuple(sent), aims)

    def unserved(self, outcome: Outcome) -> list[int]:
        """Requests that were not in time, by model."""
        return [asked - good for asked, good in zip(self.arrivals.counts, outcome.good, strict=True)]

    def _served(self, groups: tuple[Group, ...]) -> Served:
        if groups not in self._parts:
            models = tuple(sorted({model for group in groups for model in group.models}))
            asked = self.arrivals.of(models)
            self.simulated_requests += len(asked)
            self._parts[groups] = simulate(
                asked,
                [group.shape.pipeline for group in groups],
                [self._stage_times(group.shape) for group in groups],
                [
                    [place for place, group in enumerate(groups) if model in group.models]
                    for model in range(self.arrivals.models)
                ],
                self.overheads.request_s,
            )
        return self._parts[groups]

    def _stage_times(self, shape: Shape) -> list[float]:
        if shape not in self._times:
            factor = 1 + self.overheads.per_stage * shape.pipeline
            self._times[shape] = [
                self.stage_s(model, shape) * factor for model in range(self.arrivals.models)
            ]
        return self._times[shape]


def _parts(placement: Placement) -> list[list[int]]:
    """The places of groups that are joined by shared models, in order. Empty groups are in none."""
    parts: list[tuple[set[int], list[int]]] = []
    for place, group in enumerate(placement.groups):
        if not group.models:
            continue
        models, places = set(group.models), [place]
        apart = []
        for part in parts:
            if models.isdisjoint(part[0]):
                apart.append(part)
            else:
                models |= part[0]
                places = part[1] + places
        parts = [*apart, (models, sorted(places))]
    return [places for _, places in parts]
