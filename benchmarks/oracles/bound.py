"""An upper bound on the requests that any schedule whatever can serve within their SLOs.

A linear program over x_ij, the share of request i that candidate j serves in time, by the least `work` of each, for one part of a
workload at a time. docs/oracles.md has the program, its proof, and what is left out of it.

The bound is the value of the dual at the solver's prices, made feasible, whatever the solver's tolerance. With prices mu of the
step rows, nu of the two time rows and kappa of the room of a window, that takes sum mu <= A_floor nu_floor + A_compute
nu_compute for each cell and kappa >= sum nu, and then

    bound = sum kappa room + sum_i max(0, max_j (1 - price of x_ij))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.oracles.work import Least, LeastWork, kv_tokens_of, seats_of, signature
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import grouped
from router.core.profile import EngineProfile
from router.core.state import Instance

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
#: Instances that are alike, and a model that they serve.
CellKey = tuple[tuple[int, ...], str]

#: A row of steps is left out if its sum is below this share of the largest one's: it would hardly bind.
_ROW_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class UpperBound:
    """At most `met` requests keep their SLO, of `offered` that have one and that some candidate can take.
    `wanted` is, by request and then instance, the share that the linear program gives it: a guide for a
    search, of no meaning for the bound. `parts` is how many pieces the workload was cut into."""

    met: int
    offered: int
    wanted: dict[int, dict[int, float]]
    parts: int

    @property
    def attainment(self) -> float | None:
        return self.met / self.offered if self.offered else None


def goodput_upper_bound(truth: Truth, *, part_requests: int = 20_000, levels: int = 6) -> UpperBound:
    """The bound for a workload over a fleet. `levels` is how many times windows are halved at most; a part
    has at most `part_requests` requests."""
    work = LeastWork(truth)
    requests = range(len(truth.arrivals))
    offered = sum(truth.offered(index) for index in requests)
    order = sorted(requests, key=lambda index: truth.arrivals[index].request.arrived_at)
    parts = max(1, -(-len(order) // part_requests))
    wanted: dict[int, dict[int, float]] = {}
    total = 0.0
    for part in range(parts):
        chosen = order[len(order) * part // parts : len(order) * (part + 1) // parts]
        solution = Program(truth.instances, {index: work.of(index) for index in chosen}, levels).solve()
        total += solution.bound
        wanted |= solution.wanted
    # A whole number of requests; the margin is for the rounding of sums.
    return UpperBound(min(offered, floor(total + 1e-6)), offered, wanted, parts)


class Solution(NamedTuple):
    """`bound` on accepted requests; `wanted` as in `UpperBound`."""

    bound: float
    wanted: dict[int, dict[int, float]]


@dataclass(slots=True)
class _Parts:
    """The parts of answers by one kind and model, as arrays. `x` is the place of the x that a part belongs
    to; `steps` are the coefficients of each rule that bounds the number of steps."""

    x: Places
    release_s: Floats
    due_s: Floats
    own_s: Floats  # (2, parts): floor and compute
    steps: Floats  # (3, parts): seats, KV memory, pace


@dataclass(slots=True)
class _Cell:
    """The rows of one kind, model and window. `alone_s` are A of the floor and the compute bound."""

    steps: list[int]
    times: tuple[int, int]
    alone_s: tuple[float, float]


@dataclass(slots=True)
class _Window:
    room_row: int
    room_s: float
    cells: list[_Cell]


class Program:
    """`attempts` are by request those that could be in time, with their parts (`work.LeastWork.of`)."""

    def __init__(
        self,
        instances: Sequence[Instance],
        attempts: Mapping[int, list[tuple[KnownAttempt, list[Least]]]],
        levels: int,
    ) -> None:
        self._instances = instances
        alike = grouped(range(len(instances)), lambda place: signature(instances[place]))
        self._kinds = [tuple(places) for places in alike.values()]
        first = {places[0]: places for places in self._kinds}
        self._owner: list[int] = []  # the request of each x
        self._kind: list[tuple[int, ...]] = []  # and the instances that it goes to
        found: dict[CellKey, list[tuple[int, Least]]] = {}
        for index, some in attempts.items():
            for attempt, parts in some:
                kind = first.get(attempt.instance)
                if kind is None:
                    continue  # counted with the first of its kind
                x = len(self._owner)
                self._owner.append(index)
                self._kind.append(kind)
                found.setdefault((kind, attempt.model), []).extend(
                    (x, part) for part in parts if isfinite(part.due_s)
                )
        self._parts = {key: self._arrays(key, parts) for key, parts in found.items() if parts}
        self._levels = levels
        self._rows: list[tuple[Places, Floats]] = []  # columns and values; those of equal columns add up
        self._most: list[float] = []  # of each row
        self._windows: list[_Window] = []
        self._width = len(self._owner)

    def solve(self) -> Solution:
        if not self._owner:
            return Solution(0.0, {})
        for start_s, end_s in self._grid():
            for kind in self._kinds:
                self._add_window(kind, start_s, end_s)
        from scipy.optimize import linprog  # here, for the processes of a comparison without oracles

        priced = len(self._rows)
        owners, rows = np.unique(np.array(self._owner), return_inverse=True)
        order = np.argsort(rows, kind="stable")
        edges = np.searchsorted(rows[order], np.arange(len(owners) + 1))
        for low, high in pairwise(edges):
            self._add_row(order[low:high], np.ones(high - low), 1.0)
        matrix = self._matrix()
        gain = np.zeros(self._width)
        gain[: len(self._owner)] = -1.0
        # Many columns, few rows that bind: the interior point method is some ten times faster here.
        found = linprog(gain, A_ub=matrix, b_ub=self._most, bounds=(0, None), method="highs-ipm")
        if found.status != 0:  # never infeasible: nothing accepted is a solution
            raise WorkloadError(f"HiGHS gave no optimum: {found.message}")
        prices = np.maximum(0.0, -found.ineqlin.marginals[:priced])
        value = self._repair(prices)
        worth = 1.0 - matrix[:priced].T[: len(self._owner)] @ prices
        best = np.zeros(len(owners))
        np.maximum.at(best, rows, worth)
        wanted: dict[int, dict[int, float]] = {}
        for x in np.flatnonzero(found.x[: len(self._owner)] > 1e-6):
            kind = self._kind[x]
            shares = wanted.setdefault(self._owner[x], {})
            for place in kind:
                shares[place] = shares.get(place, 0.0) + float(found.x[x]) / len(kind)
        return Solution(value + float(best.sum()), wanted)

    def _arrays(self, key: CellKey, parts: list[tuple[int, Least]]) -> _Parts:
        (first, *_), model = key
        seats = seats_of(self._instances[first], model)
        kv_tokens = kv_tokens_of(self._instances[first], model)
        return _Parts(
            np.array([x for x, _ in parts], dtype=np.intp),
            np.array([part.release_s for _, part in parts]),
            np.array([part.due_s for _, part in parts]),
            np.array([part.own_s for _, part in parts]).T,
            np.array([(part.seats / seats, part.kv_tokens / kv_tokens, part.paced) for _, part in parts]).T,
        )

    def _grid(self) -> list[tuple[float, float]]:
        """Windows: the whole time and its halves, quarters, ..., each also moved by half its length, down to
        the time that half of the parts have."""
        if not self._parts:
            return []
        release_s = np.concatenate([parts.release_s for parts in self._parts.values()])
        due_s = np.concatenate([parts.due_s for parts in self._parts.values()])
        start_s, end_s = float(release_s.min()), float(due_s.max())
        given_s = float(np.median(due_s - release_s))
        found = [(start_s, end_s)]
        for level in range(1, self._levels + 1):
            length_s = (end_s - start_s) / 2**level
            if length_s < given_s:
                break
            found += [
                (start_s + half * length_s / 2, start_s + half * length_s / 2 + length_s)
                for half in range(2 ** (level + 1) - 1)
            ]
        return found

    def _add_window(self, kind: tuple[int, ...], start_s: float, end_s: float) -> None:
        """The rows of one kind of instances in one window, unless all answers together fit into it."""
        instance = self._instances[kind[0]]
        room_s = len(kind) * (end_s - start_s) * instance.speed
        inside: list[tuple[EngineProfile, _Parts, Places]] = []
        most_s = 0.0
        for (of, model), parts in self._parts.items():
            if of != kind:
                continue
            some = np.flatnonzero((parts.release_s >= start_s) & (parts.due_s <= end_s))
            if len(some):
                profile = instance.profiles[model]
                inside.append((profile, parts, some))
                steps = float(parts.steps[:, some].sum(axis=1).max())
                own_s = parts.own_s[:, some].sum(axis=1)
                most_s += max(steps * a + own for a, own in zip(_alone_s(profile), own_s, strict=True))
        if most_s <= room_s:
            return
        cells, seconds = [], []
        for profile, parts, some in inside:
            steps, time = self._width, self._width + 1
            self._width += 2
            seconds.append(time)
            cells.append(self._add_cell(profile, parts, some, steps, time))
        row = self._add_row(np.array(seconds), np.ones(len(seconds)), room_s)
        self._windows.append(_Window(row, room_s, cells))

    def _add_cell(self, profile: EngineProfile, parts: _Parts, some: Places, steps: int, time: int) -> _Cell:
        """Rows over the columns `steps` (S) and `time` (y) of a cell."""
        x = parts.x[some]
        sums = parts.steps[:, some].sum(axis=1)
        step_rows = [
            self._add_row(np.append(x, steps), np.append(rule[some], -1.0))
            for rule, total in zip(parts.steps, sums, strict=True)
            if total > 0 and total >= _ROW_SHARE * sums.max()
        ]
        alone_s = _alone_s(profile)
        floor, compute = (
            self._add_row(np.append(x, (steps, time)), np.append(own_s[some], (a, -1.0)))
            for a, own_s in zip(alone_s, parts.own_s, strict=True)
        )
        return _Cell(step_rows, (floor, compute), alone_s)

    def _add_row(self, columns: Places, values: Floats, most: float = 0.0) -> int:
        self._rows.append((columns, values))
        self._most.append(most)
        return len(self._rows) - 1

    def _matrix(self) -> Any:
        from scipy.sparse import csr_array

        columns, values = zip(*self._rows, strict=True)
        rows = np.repeat(np.arange(len(columns)), [len(each) for each in columns])
        entries = np.concatenate(values), (rows, np.concatenate(columns))
        return csr_array(entries, shape=(len(columns), self._width))

    def _repair(self, prices: Floats) -> float:
        """Make the prices of the rows of windows feasible, in place; returns what they say of the rooms."""
        value = 0.0
        for window in self._windows:
            for cell in window.cells:
                covered = sum(a * prices[row] for a, row in zip(cell.alone_s, cell.times, strict=True))
                demand = float(prices[cell.steps].sum())
                if demand > covered:
                    prices[cell.steps] *= covered / demand
            room = max(float(prices[list(cell.times)].sum()) for cell in window.cells)
            prices[window.room_row] = room
            value += room * window.room_s
        return value


def _alone_s(profile: EngineProfile) -> tuple[float, float]:
    """A of the floor and of the compute bound: seconds of a step beside those of its sequences."""
    return profile.overhead_s + profile.floor_s, profile.overhead_s
