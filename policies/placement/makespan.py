"""Jobs on unlike machines, so that the last machine ends as early as possible (R || Cmax).

`assign` takes the jobs by their least time, longest first, each to the machine that would end first with it. Then, as long as
the latest machine gets better, it moves one of its jobs elsewhere or exchanges it for another one (Graham 1969 for the order;
local search of moves and exchanges after Schuurman and Vredeveld, INFORMS J. on Computing 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

#: A change counts only if it gains more than rounding does.
_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Assignment:
    """`machines[j]` runs job `j`. `ends[m]` is when machine m has done all of its jobs, `makespan` the latest of them.
    No assignment ends before `bound`."""

    machines: tuple[int, ...]
    ends: tuple[float, ...]
    bound: float

    @property
    def makespan(self) -> float:
        return max(self.ends)


def assign(times: Sequence[Sequence[float]], ready: Sequence[float]) -> Assignment:
    """`times[j][m]`: how long machine m works on job j, infinite where it cannot. `ready[m]`: when machine m is free.

    Raises ValueError if no machine can do a job.
    """
    least = [min(row, default=inf) for row in times]
    if inf in least:
        raise ValueError(f"no machine can do job {least.index(inf)}")
    machines = [0] * len(times)
    ends = list(ready)
    for job in sorted(range(len(times)), key=lambda job: -least[job]):
        row = times[job]
        machine = min(range(len(ends)), key=lambda each: (ends[each] + row[each], row[each]))
        machines[job] = machine
        ends[machine] += row[machine]
    while _improve(times, machines, ends):
        pass
    return Assignment(tuple(machines), tuple(ends), _bound(times, ready, least))


def _improve(times: Sequence[Sequence[float]], machines: list[int], ends: list[float]) -> bool:
    """Make the best move or exchange of a job of the latest machine. False if none makes it end earlier."""
    latest = max(range(len(ends)), key=ends.__getitem__)
    best = ends[latest] - _GAIN
    moves: list[tuple[int, int]] = []
    for job in (job for job, machine in enumerate(machines) if machine == latest):
        left = ends[latest] - times[job][latest]
        for other in range(len(ends)):
            end = max(left, ends[other] + times[job][other])
            if other != latest and end < best:
                best, moves = end, [(job, other)]
        for back, other in enumerate(machines):
            end = max(left + times[back][latest], ends[other] - times[back][other] + times[job][other])
            if other != latest and end < best:
                best, moves = end, [(job, other), (back, latest)]
    for job, target in moves:
        ends[machines[job]] -= times[job][machines[job]]
        ends[target] += times[job][target]
        machines[job] = target
    return bool(moves)


def _bound(times: Sequence[Sequence[float]], ready: Sequence[float], least: Sequence[float]) -> float:
    """No job ends before its machine is ready and it is done; and the machines share all the least work at best."""
    alone = max(
        (min(start + time for start, time in zip(ready, row, strict=True)) for row in times), default=0.0
    )
    return max(alone, *ready, (sum(ready) + sum(least)) / len(ready))
