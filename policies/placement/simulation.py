"""A list of requests, and its simulation over pipelined groups, first come, first served.

The fast simulator of AlpaServe (Li et al., OSDI '23; github.com/alpa-projects/mms, `simulate_requests_mixed`): a
request goes to the replica whose last stage is free first, passes the stages one after another, one request a stage
at a time, and is refused on arrival when it would end after its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival: the time (s), the model, and the time that each may take (s)."""

    arrival_s: Sequence[float]
    model: Sequence[int]
    deadline_s: Sequence[float]
    models: int
    #: The number of requests for each model.
    counts: tuple[int, ...] = field(init=False, repr=False)
    _parts: dict[tuple[int, ...], Arrivals] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __post_init__(self) -> None:
        counts = [0] * self.models
        for each in self.model:
            counts[each] += 1
        object.__setattr__(self, "counts", tuple(counts))

    def of(self, chosen: tuple[int, ...]) -> Arrivals:
        """Only the requests for these models (sorted)."""
        if chosen not in self._parts:
            wanted = set(chosen)
            rows = [
                row
                for row in zip(self.arrival_s, self.model, self.deadline_s, strict=True)
                if row[1] in wanted
            ]
            self._parts[chosen] = Arrivals(
                [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], self.models
            )
        return self._parts[chosen]


class Served(NamedTuple):
    """`good`: requests in time, by model. `latency_s`: the sum over those. `sent`: requests that each group was
    given, refused ones too."""

    good: list[int]
    latency_s: float
    sent: list[int]


def simulate(
    arrivals: Arrivals,
    stages: Sequence[int],
    stage_s: Sequence[Sequence[float]],
    groups_of: Sequence[Sequence[int]],
    overhead_s: float,
) -> Served:
    """Serve all requests. `stages`: how many each group has; `stage_s`: the time of one stage, by group and model;
    `groups_of`: the groups that run each model, in order; `overhead_s` comes once for each request."""
    good = [0] * arrivals.models
    sent = [0] * len(stages)
    free_s = [[0.0] * count for count in stages]  # when each stage is free
    last_s = [0.0] * len(stages)  # when the last stage is
    # By model the groups that run it, the one that is free first on top. What is below may have become later meanwhile.
    heaps = [[(0.0, group) for group in groups] for groups in groups_of]
    latency_s = 0.0
    for arrival_s, model, deadline_s in zip(
        arrivals.arrival_s, arrivals.model, arrivals.deadline_s, strict=True
    ):
        heap = heaps[model]
        if not heap:
            continue
        free, group = heap[0]
        while free != last_s[group]:  # it was given a request for another model
            heapreplace(heap, (last_s[group], group))
            free, group = heap[0]
        sent[group] += 1
        time_s = stage_s[group][model]
        at_s = arrival_s
        if stages[group] == 1:
            at_s = (at_s if at_s > free else free) + time_s
        else:
            ends = []
            for free in free_s[group]:
                at_s = (at_s if at_s > free else free) + time_s
                ends.append(at_s)
        took_s = at_s + overhead_s - arrival_s
        if took_s <= deadline_s:
            last_s[group] = at_s
            heapreplace(heap, (at_s, group))
            if stages[group] > 1:
                free_s[group] = ends
            good[model] += 1
            latency_s += took_s
    return Served(good, latency_s, sent)
