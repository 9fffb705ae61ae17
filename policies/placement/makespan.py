"""Jobs on unlike machines, so that the last machine ends as early as possible (R || Cmax).

For prices of the machines' time that sum to 1, no assignment ends before

    sum_m price_m x ready_m + sum_j min_m price_m x time_jm

`assign` raises the prices of machines that get too much when each job goes to its cheapest machine, and lowers the others
(subgradients of this Lagrangian bound; multiplicative weights). Then it takes the jobs by their least time, longest first, each
to the machine that would end first with it: of all machines (Graham 1969), and of the cheapest ones. As long as the latest
machine gets better, it moves one of its jobs elsewhere or exchanges it for another one (Schuurman and Vredeveld, INFORMS J. on
Computing 2007). The better of both results counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from operator import mul

import numpy as np

#: A change counts only if it gains more than rounding does.
_GAIN = 1e-9
#: Changes of the prices, and by how much more than the bound a machine's load counts.
_STEPS = 100
_MOST_CHANGE = 4.0


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
    prices, bound = _priced(times, ready)
    order = sorted(range(len(times)), key=lambda job: -least[job])
    best: tuple[list[int], list[float]] | None = None
    table = np.array(times, float).reshape(len(times), len(ready))
    for cheapest in (False, True):
        machines, ends = [0] * len(times), list(ready)
        for job in order:
            row = times[job]
            among = _cheapest(row, prices) if cheapest else range(len(ends))
            machine = min(among, key=lambda each: (ends[each] + row[each], row[each]))
            machines[job] = machine
            ends[machine] += row[machine]
        placed, ended = np.array(machines), np.array(ends)
        while _improve(table, placed, ended):
            pass
        if best is None or ended.max() < max(best[1]):
            best = placed.tolist(), ended.tolist()
    assert best is not None  # noqa: S101 (there are two)
    alone = max(
        (min(start + time for start, time in zip(ready, row, strict=True)) for row in times), default=0.0
    )
    return Assignment(tuple(best[0]), tuple(best[1]), max(bound, alone, *ready))


def _priced(times: Sequence[Sequence[float]], ready: Sequence[float]) -> tuple[list[float], float]:
    """The prices with the greatest bound that was found, and that bound."""
    logarithms = [0.0] * len(ready)
    found: tuple[list[float], float] = [1.0 / len(ready)] * len(ready), 0.0
    for step in range(_STEPS):
        weights = [exp(each - max(logarithms)) for each in logarithms]
        prices = [each / sum(weights) for each in weights]
        loads = list(ready)
        for row in times:
            machines = _cheapest(row, prices)
            for machine in machines:
                loads[machine] += row[machine] / len(machines)
        bound = sum(map(mul, prices, loads))
        if bound > found[1]:
            found = prices, bound
        for machine, load in enumerate(loads):
            change = min(load / bound - 1.0, _MOST_CHANGE) if bound else 0.0
            logarithms[machine] += change / (2.0 * sqrt(1.0 + step))
    return found


def _cheapest(row: Sequence[float], prices: Sequence[float]) -> list[int]:
    """The machines whose time for a job costs least."""
    costs = [time * price for time, price in zip(row, prices, strict=True)]
    most = min(costs) * (1.0 + _GAIN)
    return [machine for machine, cost in enumerate(costs) if cost <= most]


def _improve(times: np.ndarray, machines: np.ndarray, ends: np.ndarray) -> bool:
    """Make the best move or exchange of a job of the latest machine. False if none makes it end earlier."""
    latest = int(ends.argmax())
    mine, own = np.flatnonzero(machines == latest), np.arange(len(machines))
    if not mine.size:
        return False
    left = (ends[latest] - times[mine, latest])[:, None]
    # By job of that machine, first moves to each machine, then exchanges with each job: when the later one of both ends.
    moved = np.maximum(left, ends + times[mine])
    moved[:, latest] = inf
    without = ends[machines] - times[own, machines]
    exchanged = np.maximum(left + times[:, latest], without + times[mine][:, machines])
    exchanged[:, mine] = inf
    found = np.hstack((moved, exchanged))
    row, column = divmod(int(found.argmin()), found.shape[1])
    if not found[row, column] < ends[latest] - _GAIN:
        return False
    job, back = mine[row], column - len(ends)
    target = column if back < 0 else machines[back]
    for each, other in ((job, target), (back, latest)) if back >= 0 else ((job, target),):
        ends[machines[each]] -= times[each, machines[each]]
        ends[other] += times[each, other]
        machines[each] = other
    return True
