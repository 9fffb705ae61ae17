"""Groups of GPUs of unlike width for one batch of documents: long ones on wide groups, short ones on single GPUs.

A group of width (tensor degree, context degree) works on its documents one after another. Wanted are the groups, and which
documents each takes, so that the last group ends as early as possible on so many GPUs. `equal_groups` is what WLB-LLM
(arXiv 2503.17924) searches: one width for all groups. `unlike_groups` lets every group have its own.

For a limit on the time of a group, the least number of GPUs for what is left of the batch is

    f(left) = min over groups that take a longest document left of (GPUs of the group + f(left without its documents))

Only groups count into which no further document fits, since f never falls when documents are added. Documents of one length
are alike, so `left` is one count for each length. The limit is halved in until no plan below the best one exists. If `left`
could take too many values, each step takes only the group that does the most work a GPU, and the plan is not `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from operator import le, sub
from typing import NamedTuple

#: Sums of the same times may differ by so much.
_ROUNDING = 1e-9
#: The search is exact up to so many values of what is left of the batch.
_EXACT = 2_000


class Width(NamedTuple):
    """How many GPUs share the heads (tensor parallel) and the tokens (context parallel) of a document."""

    tensor: int
    context: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.context


#: The time of one document of so many tokens on a group of this width, in any unit.
Cost = Callable[[int, Width], float]


class Group(NamedTuple):
    """`documents`: the lengths in tokens of what the group works on, longest first. `time`: of them all."""

    width: Width
    documents: tuple[int, ...]
    time: float


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The groups. No plan has a smaller makespan than `bound`."""

    groups: tuple[Group, ...]
    bound: float

    @property
    def makespan(self) -> float:
        """The time of the last group to end."""
        return max((group.time for group in self.groups), default=0.0)

    @property
    def gpus(self) -> int:
        return sum(group.width.gpus for group in self.groups)


def unlike_groups(documents: Sequence[int], gpus: int, widths: Sequence[Width], cost: Cost) -> GroupPlan:
    """The plan with the least makespan on at most so many GPUs; among such plans, one of the fewest GPUs.

    Raises ValueError if no width has so few GPUs.
    """
    usable = [width for width in widths if width.gpus <= gpus]
    if not usable:
        raise ValueError(f"no group fits into {gpus} GPUs")
    search = _Search(documents, usable, cost)
    below = search.bound(gpus)
    best = search.plan(search.together())
    while best.makespan > below + 2 * _ROUNDING:
        limit = (below + best.makespan) / 2
        found = search.plan(limit)
        if found.gpus <= gpus:
            best = found
        else:
            below = search.next_limit() if search.exact else limit
    best = search.plan(best.makespan)
    return GroupPlan(best.groups, below if search.exact else search.bound(gpus))


def equal_groups(documents: Sequence[int], groups: int, width: Width, cost: Cost) -> GroupPlan:
    """The plan with the least makespan on so many groups of one width."""
    return unlike_groups(documents, groups * width.gpus, [width], cost)


#: How many documents of each length are left, or are in a group; the longest ones first.
_Counts = tuple[int, ...]


class _Search:
    """The fewest GPUs for a limit on the time of a group."""

    def __init__(self, documents: Sequence[int], widths: Sequence[Width], cost: Cost) -> None:
        self._lengths = sorted(set(documents), reverse=True)
        self._batch = tuple(documents.count(length) for length in self._lengths)
        times = {width: tuple(cost(length, width) for length in self._lengths) for width in widths}
        self._times = {width: row for width, row in times.items() if not _is_beaten(width, times)}
        self._gpu_times: list[float] = [
            min(time * width.gpus for width, time in zip(self._times, column, strict=True))
            for column in zip(*self._times.values(), strict=True)
        ]
        self.exact = prod(count + 1 for count in self._batch) <= _EXACT
        self._limit = self._next = inf
        self._fewest: dict[_Counts, tuple[int, Width, _Counts]] = {}

    def bound(self, gpus: int) -> float:
        """Each document takes its least time on some group, and all of them their least GPU time on all GPUs."""
        alone = max(map(min, zip(*self._times.values(), strict=True)), default=0.0)
        return max(alone, self._least_gpu_time(self._batch) / gpus)

    def together(self) -> float:
        """The least time of one group that takes all."""
        return min(self._time(width, self._batch) for width in self._times)

    def plan(self, limit: float) -> GroupPlan:
        """The plan of the fewest GPUs in which no group takes longer than `limit`."""
        self._limit, self._next, self._fewest = limit + _ROUNDING, inf, {}
        groups = []
        left = self._batch
        while any(left):
            _, width, taken = self._place(left)
            groups.append(self._group(width, taken))
            left = _without(left, taken)
        return GroupPlan(tuple(groups), limit)

    def next_limit(self) -> float:
        """The least limit above that of the last plan at which a group could take more."""
        return self._next

    def _place(self, left: _Counts) -> tuple[int, Width, _Counts]:
        """The fewest GPUs for what is left, and the first of their groups."""
        if left not in self._fewest:
            options = [(width, taken) for width in self._times for taken in self._fillings(width, left)]
            if not self.exact:
                options = [max(options, key=self._work_of_a_gpu)]
            self._fewest[left] = min(
                (width.gpus + self._gpus(_without(left, taken)), width, taken) for width, taken in options
            )
        return self._fewest[left]

    def _gpus(self, left: _Counts) -> int:
        return self._place(left)[0] if any(left) else 0

    def _fillings(self, width: Width, left: _Counts) -> Iterator[_Counts]:
        """What a group may take of what is left, at least one of the longest: nothing more fits."""
        times = self._times[width]
        longest = next(at for at, count in enumerate(left) if count)
        for taken in self._parts(times, left, 0.0):
            free = self._limit - self._time(width, taken)
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
        least = 0 if self.exact and len(left) > 1 else most
        for count in range(most, least - 1, -1):
            for rest in self._parts(times, left[1:], used + count * times[at]):
                yield (count, *rest)

    def _work_of_a_gpu(self, option: tuple[Width, _Counts]) -> float:
        """The least GPU time of the documents, for each GPU of the group."""
        width, taken = option
        return self._least_gpu_time(taken) / width.gpus

    def _least_gpu_time(self, counts: _Counts) -> float:
        return sum(count * least for count, least in zip(counts, self._gpu_times, strict=True))

    def _time(self, width: Width, taken: _Counts) -> float:
        return sum(count * time for count, time in zip(taken, self._times[width], strict=True))

    def _group(self, width: Width, taken: _Counts) -> Group:
        documents = tuple(
            length for length, count in zip(self._lengths, taken, strict=True) for _ in range(count)
        )
        return Group(width, documents, self._time(width, taken))


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
