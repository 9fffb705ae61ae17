"""Jobs on unlike machines, so that the last machine ends as early as possible (R || Cmax).

For prices of the machines' time that sum to 1, no assignment ends before

    sum_m price_m x ready_m + sum_j min_m price_m x time_jm

`assign` raises the prices of machines that get too much when each job goes to its cheapest machine, and lowers the others
(subgradients of this Lagrangian bound; multiplicative weights). Then it takes the jobs by their least time, longest first, each
to the machine that would end first with it: of all machines (Graham 1969), and of the cheapest ones. As long as the latest
machine gets better and is not next to the bound, it moves one of its jobs elsewhere or exchanges it for another one (Schuurman
and Vredeveld, INFORMS J. on Computing 2007). The better of both results counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

#: Costs that differ by no more than this share are equal.
_ROUNDING = 1e-9
#: A change counts if it gains this share of the makespan; nearer to the bound than this the search ends.
_GAIN = 1e-4
#: The most exchanges that one step looks at. The latest machine's jobs are thinned out to that.
_MOST_EXCHANGES = 200_000
#: Changes of the prices, each smaller than the one before, and by how much more than the bound a machine's load counts.
_STEPS, _FIRST_STEP, _NEXT_STEP = 200, 0.5, 0.97
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
    table, free = np.array(times, float).reshape(len(times), len(ready)), np.array(ready, float)
    least = table.min(axis=1, initial=inf)
    if np.isinf(least).any():
        raise ValueError(f"no machine can do job {least.argmax()}")
    prices, bound = _priced(table, free)
    bound = max(bound, (free + table).min(axis=1, initial=inf).max(initial=0.0), *ready)
    best: tuple[np.ndarray, np.ndarray] | None = None
    for among in (np.isfinite(table), _cheapest(table, prices)):
        machines, ends = np.zeros(len(times), int), free.copy()
        for job in np.argsort(-least, kind="stable"):
            row = np.where(among[job], table[job], inf)
            machine = np.lexsort((row, ends + row))[0]
            machines[job] = machine
            ends[machine] += row[machine]
        while ends.max() > bound * (1.0 + _GAIN) and _improve(table, machines, ends):
            pass
        if best is None or ends.max() < best[1].max():
            best = machines, ends
    assert best is not None  # noqa: S101 (there are two)
    return Assignment(tuple(best[0].tolist()), tuple(best[1].tolist()), float(bound))


def _priced(times: np.ndarray, ready: np.ndarray) -> tuple[np.ndarray, float]:
    """The prices with the greatest bound that was found, and that bound."""
    logarithms = np.zeros(len(ready))
    found = np.full(len(ready), 1.0 / len(ready)), 0.0
    for step in range(_STEPS):
        weights = np.exp(logarithms - logarithms.max())
        prices = weights / weights.sum()
        cheapest = _cheapest(times, prices)
        shares = cheapest / cheapest.sum(axis=1, keepdims=True)
        loads = ready + (np.where(cheapest, times, 0.0) * shares).sum(axis=0)
        bound = float(prices @ loads)
        if bound > found[1]:
            found = prices, bound
        if bound:
            logarithms += np.minimum(loads / bound - 1.0, _MOST_CHANGE) * _FIRST_STEP * _NEXT_STEP**step
    return found


def _cheapest(times: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Whether a machine's time for a job costs least, by job and machine."""
    costs = times * prices
    equal: np.ndarray = costs <= costs.min(axis=1, keepdims=True, initial=inf) * (1.0 + _ROUNDING)
    return equal


def _improve(times: np.ndarray, machines: np.ndarray, ends: np.ndarray) -> bool:
    """Make the best move or exchange of a job of the latest machine. False if none makes it end earlier."""
    latest = int(ends.argmax())
    mine, own = np.flatnonzero(machines == latest), np.arange(len(machines))
    if not mine.size:
        return False
    mine = mine[:: -(-mine.size * own.size // _MOST_EXCHANGES)]
    left = (ends[latest] - times[mine, latest])[:, None]
    # By job of that machine, first moves to each machine, then exchanges with each job: when the later one of both ends.
    moved = np.maximum(left, ends + times[mine])
    moved[:, latest] = inf
    without = ends[machines] - times[own, machines]
    exchanged = np.maximum(left + times[:, latest], without + times[mine][:, machines])
    exchanged[:, machines == latest] = inf
    found = np.hstack((moved, exchanged))
    row, column = divmod(int(found.argmin()), found.shape[1])
    if not found[row, column] < ends[latest] * (1.0 - _GAIN):
        return False
    job, back = mine[row], column - len(ends)
    target = column if back < 0 else machines[back]
    for each, other in ((job, target), (back, latest)) if back >= 0 else ((job, target),):
        ends[machines[each]] -= times[each, machines[each]]
        ends[other] += times[each, other]
        machines[each] = other
    return True
