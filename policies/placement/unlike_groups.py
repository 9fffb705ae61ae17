"""Groups of GPUs of unlike width for one batch of documents: long ones on wide groups, short ones on single GPUs.

A group of width (tensor degree, context degree) works on its documents one after another. Wanted are the groups, and which
documents each takes, so that the last group ends as early as possible on so many GPUs. `equal_groups` is what WLB-LLM
(arXiv 2503.17924) searches: one width for all groups. `unlike_groups` lets every group have its own.

For a limit on the time of a group, the least number of GPUs for what is left of the batch is

    f(left) = min over groups that take a longest document left of (GPUs of the group + f(left without its documents))

Only groups count into which no further document fits, since f never falls when documents are added. Documents of one length
are alike, so `left` is one count for each length. Bisection finds the least limit that has a plan.

If `left` could take too many values, each group is the one with the most work a GPU after it is filled with the longest
documents that fit, and the least limit is found to a thousandth. `BatchPlan.bound` says how far from the optimum that can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from math import inf, prod
from operator import le, sub
from typing import NamedTuple

#: Sums of the same times may differ by this much.
_ROUNDING = 1e-9
#: The search is exact up to this many values of `left`.
_EXACT = 2_000
#: For larger batches the least limit is found to this share.
_NEAR = 1e-3


class Width(NamedTuple):
    """How many GPUs share the heads (tensor parallel) and the tokens (context parallel) of a document."""

    tensor: int
    context: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.context


#: The time of one document of so many tokens on a group of this width, in any unit; infinite where it does not fit.
Cost = Callable[[int, Width], float]


class BatchGroup(NamedTuple):
    """`documents`: the lengths in tokens of what the group works on, longest first. `time`: of them all."""

    width: Width
    documents: tuple[int, ...]
    time: float


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The groups. No plan has a smaller makespan than `bound`."""

    groups: tuple[BatchGroup, ...]
    bound: float

    @property
    def makespan(self) -> float:
        """The time of the last group to end."""
        return max((group.time for group in self.groups), default=0.0)

    @property
    def gpus(self) -> int:
        return sum(group.width.gpus for group in self.groups)


def unlike_groups(documents: Sequence[int], gpus: int, widths: Sequence[Width], cost: Cost) -> BatchPlan:
    """The plan with the least makespan on at most so many GPUs; among such plans, one of the fewest GPUs.

    Raises ValueError if no width has so few GPUs.
    """
    usable = [width for width in widths if width.gpus <= gpus]
    if not usable:
        raise ValueError(f"no group fits into {gpus} GPUs")
    batch = _Batch(documents, usable, cost)
    below = bound = batch.bound(gpus)
    if prod(count + 1 for count in batch.counts) > _EXACT:
        best = _filled_plan(batch, batch.together())
        while best.makespan > below + _NEAR * bound:
            limit = (below + best.makespan) / 2
            found = _filled_plan(batch, limit)
            if found.gpus <= gpus:
                best = found
            else:
                below = limit
        return BatchPlan(best.groups, bound)
    search = _Search(batch)
    best = search.plan(batch.together())
    while best.makespan > below + 2 * _ROUNDING:
        found = search.plan((below + best.makespan) / 2)
        if found.gpus <= gpus:
            best = found
        else:
            below = search.next_limit()
    return BatchPlan(search.plan(best.makespan).groups, below)


def equal_groups(documents: Sequence[int], groups: int, width: Width, cost: Cost) -> BatchPlan:
    """The plan with the least makespan on so many groups of one width."""
    return unlike_groups(documents, groups * width.gpus, [width], cost)


#: How many documents of each length are left, or are in a group; the longest ones first.
_Counts = tuple[int, ...]


class _Batch:
    """The documents by length, `counts` of each, and how long the widths take that no other width beats."""

    def __init__(self, documents: Sequence[int], widths: Sequence[Width], cost: Cost) -> None:
        number = Counter(documents)
        self.lengths = sorted(number, reverse=True)
        self.counts: _Counts = tuple(number[length] for length in self.lengths)
        times = {width: tuple(cost(length, width) for length in self.lengths) for width in widths}
        self.times = {width: row for width, row in times.items() if not _is_beaten(width, times)}
        #: By length: (time, GPU time) of each width.
        self._options = [
            [(time, time * width.gpus) for width, time in zip(self.times, column, strict=True)]
            for column in zip(*self.times.values(), strict=True)
        ]
        self.gpu_times = self._least_gpu_times(inf)

    def bound(self, gpus: int) -> float:
        """No group ends before its longest document, and all GPUs together have the least GPU time to do, on widths that take
        no longer than the limit: the least limit that allows both."""
        below = max((min(time for time, _ in options) for options in self._options), default=0.0)
        above = max(below, self._gpu_time(self._least_gpu_times(below)) / gpus)
        while above - below > _ROUNDING * above:
            limit = (below + above) / 2
            if self._gpu_time(self._least_gpu_times(limit)) > limit * gpus:
                below = limit
            else:
                above = limit
        return below

    def together(self) -> float:
        """The least time of one group that takes all."""
        return min(self.time(width, self.counts) for width in self.times)

    def time(self, width: Width, taken: _Counts) -> float:
        """Of one group, for these documents."""
        return _dot(taken, self.times[width])

    def plan(self, groups: Iterable[tuple[Width, _Counts]], bound: float) -> BatchPlan:
        """The plan of groups that take these documents."""
        return BatchPlan(
            tuple(
                BatchGroup(
                    width,
                    tuple(chain.from_iterable(map(repeat, self.lengths, taken))),
                    self.time(width, taken),
                )
                for width, taken in groups
            ),
            bound,
        )

    def _least_gpu_times(self, limit: float) -> list[float]:
        """Of one document of each length, on a width that takes no longer than the limit."""
        return [
            min(gpu_time for time, gpu_time in options if time <= limit + _ROUNDING)
            for options in self._options
        ]

    def _gpu_time(self, gpu_times: Sequence[float]) -> float:
        return _dot(self.counts, gpu_times)


def _filled_plan(batch: _Batch, limit: float) -> BatchPlan:
    """A plan in which no group takes longer than `limit`: each group does the most work a GPU of those that take the longest
    documents which fit."""
    groups = []
    left = batch.counts
    while any(left):
        longest = next(at for at, count in enumerate(left) if count)
        options = [(width, _filled(batch, width, left, limit)) for width in batch.times]
        width, taken = max(
            (option for option in options if option[1][longest]),
            key=lambda option: _dot(option[1], batch.gpu_times) / option[0].gpus,
        )
        groups.append((width, taken))
        left = _without(left, taken)
    return batch.plan(groups, limit)


def _filled(batch: _Batch, width: Width, left: _Counts, limit: float) -> _Counts:
    free = limit + _ROUNDING
    taken = []
    for count, time in zip(left, batch.times[width], strict=True):
        fits = min(count, int(free / time)) if count and time <= free else 0
        free -= fits * time
        taken.append(fits)
    return tuple(taken)


class _Search:
    """The fewest GPUs for a limit on the time of a group."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._limit = self._next = inf
        self._fewest: dict[_Counts, tuple[int, Width, _Counts]] = {}

    def plan(self, limit: float) -> BatchPlan:
        """The plan of the fewest GPUs in which no group takes longer than `limit`."""
        self._limit, self._next, self._fewest = limit + _ROUNDING, inf, {}
        groups = []
        left = self._batch.counts
        while any(left):
            _, width, taken = self._place(left)
            groups.append((width, taken))
            left = _without(left, taken)
        return self._batch.plan(groups, limit)

    def next_limit(self) -> float:
        """The least limit above that of the last plan at which a group could take more."""
        return self._next

    def _place(self, left: _Counts) -> tuple[int, Width, _Counts]:
        """The fewest GPUs for what is left, and the first of their groups."""
        if left not in self._fewest:
            self._fewest[left] = min(
                (width.gpus + self._gpus(_without(left, taken)), width, taken)
                for width in self._batch.times
                for taken in self._fillings(width, left)
            )
        return self._fewest[left]

    def _gpus(self, left: _Counts) -> int:
        return self._place(left)[0] if any(left) else 0

    def _fillings(self, width: Width, left: _Counts) -> Iterator[_Counts]:
        """What a group may take of what is left, at least one of the longest: nothing more fits."""
        times = self._batch.times[width]
        longest = next(at for at, count in enumerate(left) if count)
        for taken in self._parts(times, left, 0.0):
            free = self._limit - self._batch.time(width, taken)
            full = all(
                time > free for time, count, has in zip(times, left, taken, strict=True) if count > has
            )
            if full and taken[longest]:
                yield taken

    def _parts(self, times: Sequence[float], left: _Counts, used: float) -> Iterator[_Counts]:
        """What takes no more than the limit. Of the last length: as many as possible."""
        if not left:
            yield ()
            return
        at = len(times) - len(left)
        most = min(left[0], int((self._limit - used) / times[at]))
        if most < left[0]:
            self._next = min(self._next, used + (most + 1) * times[at])
        least = 0 if len(left) > 1 else most
        for count in range(most, least - 1, -1):
            for rest in self._parts(times, left[1:], used + count * times[at] if count else used):
                yield (count, *rest)


def _is_beaten(width: Width, times: Mapping[Width, Sequence[float]]) -> bool:
    """Whether another width of no more GPUs takes no longer for any length; of equal ones the first stays."""
    for other, row in times.items():
        if other.gpus <= width.gpus and all(map(le, row, times[width])):
            equal = other.gpus == width.gpus and row == times[width]
            if other < width or not (equal or other == width):
                return True
    return False


def _without(left: _Counts, taken: _Counts) -> _Counts:
    return tuple(map(sub, left, taken))


def _dot(counts: _Counts, times: Sequence[float]) -> float:
    return sum(count * time for count, time in zip(counts, times, strict=True) if count)
