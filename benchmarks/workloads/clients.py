"""Requests drawn from what is known of many clients: rate and shape of the gaps by window, quantiles of lengths.

Within a window a client's arrivals are a renewal process, as in ServeGen's own generator (arXiv 2505.09999): see "ServeGen" in
docs/workloads.md. A window's requests follow from seed, client and window alone, so a slice of a trace holds what the whole
would hold there. All rates are multiplied by one factor, since dropping requests at random would turn every client into a
Poisson process, and dropping clients would leave the day cycle and the lengths of the few.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from benchmarks.workloads.format import WorkloadRequest

WINDOW_S = 600
LENGTH_WINDOW_S = 21600
#: Beyond that a told mean speaks of the quantiles' coarseness: 95 of 100 published windows need less.
MOST_EXCESS = 5.0
#: The quantiles by which lengths are known.
LEVELS = (0.10, 0.25, 0.50, 0.75, 0.90, 0.99)


class Window(NamedTuple):
    """A client's arrivals in one window: requests/s, and the family and shape of their gaps."""

    rate_per_s: float
    pattern: Literal["Gamma", "Weibull"]
    shape: float


class TokenQuantiles:
    """A distribution of lengths in tokens, known by its mean and its quantiles at LEVELS. Between quantiles the logarithm of
    the length is interpolated (their means come nearer the given ones than with straight lines). Below the first the slope
    goes on; above the last the excess is exponential, with the mean that brings the whole to the given one, where an excess
    of 0 to MOST_EXCESS times the last can."""

    __slots__ = ("_excess", "_levels", "_logs")

    def __init__(self, mean: float, quantiles: Sequence[float]) -> None:
        logs = [math.log(max(1.0, value)) for value in itertools.accumulate(quantiles, max)]
        lowest = logs[0] - (logs[1] - logs[0]) * LEVELS[0] / (LEVELS[1] - LEVELS[0])
        self._levels = (0.0, *LEVELS)
        self._logs = (max(0.0, lowest), *logs)
        body = math.fsum(
            (high - low) * _mean_between(a, b)
            for (low, high), (a, b) in zip(
                itertools.pairwise(self._levels), itertools.pairwise(self._logs), strict=True
            )
        )
        above = 1 - LEVELS[-1]
        last = math.exp(self._logs[-1])
        self._excess = min(MOST_EXCESS * last, max(0.0, (mean - body) / above - last))

    def draw(self, random_: random.Random) -> int:
        """A length, at least 1."""
        level = random_.random()
        above = bisect_right(self._levels, level)
        if above == len(self._levels):
            excess = random_.expovariate(1 / self._excess) if self._excess else 0.0
            return max(1, round(math.exp(self._logs[-1]) + excess))
        low, high = self._levels[above - 1], self._levels[above]
        a, b = self._logs[above - 1], self._logs[above]
        return max(1, round(math.exp(a + (b - a) * (level - low) / (high - low))))


def _mean_between(a: float, b: float) -> float:
    """The mean of exp(x) for x even between `a` and `b`."""
    return math.exp(a) if b - a < 1e-9 else (math.exp(b) - math.exp(a)) / (b - a)


class Lengths(NamedTuple):
    """Input and output lengths of a client in a window of LENGTH_WINDOW_S. They are drawn independently: the
    sources do not have their joint distribution."""

    input: TokenQuantiles
    output: TokenQuantiles


@dataclass(slots=True)
class Client:
    """One client: its windows by their start in seconds, its lengths by theirs."""

    windows: dict[int, Window] = field(default_factory=dict)
    lengths: dict[int, Lengths] = field(default_factory=dict)

    def lengths_at(self, at_s: int) -> Lengths | None:
        """The lengths of the latest window that has begun, else of the first; None without any."""
        begun = [start for start in self.lengths if start <= at_s]
        if not self.lengths:
            return None
        return self.lengths[max(begun) if begun else min(self.lengths)]


class ClientPool:
    """The clients of one service, known by aggregates: requests are drawn from them, lazily and in order of time."""

    def __init__(self, name: str, clients: Mapping[int, Client]) -> None:
        self._name = name
        self._clients = clients
        self._by_start: dict[int, list[int]] = {}
        for number in sorted(clients):
            for start in clients[number].windows:
                self._by_start.setdefault(start, []).append(number)
        self._starts = sorted(self._by_start)
        self._mixtures: dict[int, tuple[list[Lengths], list[float]]] = {}

    @property
    def end_s(self) -> float:
        """Where the trace ends, in seconds from its start."""
        return float(self._starts[-1] + WINDOW_S) if self._starts else 0.0

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """The clients' rates together, averaged over a span (no longer than the trace)."""
        end_s = min(end_s, self.end_s)
        if end_s <= start_s:
            return 0.0
        requests = math.fsum(
            self._clients[number].windows[start].rate_per_s
            * (min(end_s, start + WINDOW_S) - max(start_s, start))
            for start in self._within(start_s, end_s)
            for number in self._by_start[start]
        )
        return requests / (end_s - start_s)

    def draw(self, seed: int, start_s: float, end_s: float, factor: float) -> Iterator[WorkloadRequest]:
        """The requests of a span in order of time, counted from `start_s`, all rates multiplied by `factor`. One window is held
        at a time."""
        for start in self._within(start_s, end_s):
            drawn = [self._window(seed, number, start, factor) for number in self._by_start[start]]
            for at_s, number, place, prompt_tokens, output_tokens in heapq.merge(*drawn):
                if start_s <= at_s < end_s:
                    yield WorkloadRequest(
                        id=f"{self._name}-{number}-{start // WINDOW_S}-{place}",
                        arrival_s=at_s - start_s,
                        prompt_tokens=prompt_tokens,
                        output_tokens=output_tokens,
                        source=self._name,
                    )

    def _within(self, start_s: float, end_s: float) -> list[int]:
        """The starts of the windows that lie in a span, wholly or in part."""
        first = bisect_right(self._starts, start_s - WINDOW_S)
        return self._starts[first : bisect_left(self._starts, end_s)]

    def _window(
        self, seed: int, number: int, start: int, factor: float
    ) -> Iterator[tuple[float, int, int, int, int]]:
        """A client's requests of one window: time, client, place, input and output tokens."""
        window = self._clients[number].windows[start]
        random_ = random.Random(f"{seed}/{self._name}/{number}/{start}")
        expected = window.rate_per_s * WINDOW_S * factor
        count = math.floor(expected)
        count += random_.random() < expected - count
        if not count:
            return

        def gap() -> float:
            if window.pattern == "Gamma":
                return random_.gammavariate(window.shape, 1.0)
            return random_.weibullvariate(1.0, window.shape)

        lengths = self._clients[number].lengths_at(start)
        for place, at_s in enumerate(spread(random_, count, gap, WINDOW_S)):
            own = lengths or self._drawn_lengths(random_, start // LENGTH_WINDOW_S * LENGTH_WINDOW_S)
            yield start + at_s, number, place, own.input.draw(random_), own.output.draw(random_)

    def _drawn_lengths(self, random_: random.Random, start: int) -> Lengths:
        """For a client without lengths: those of a request of the pool, so of a client drawn by its rate."""
        if start not in self._mixtures:
            pool = [client for _, client in sorted(self._clients.items()) if client.lengths]
            windows = range(start, start + LENGTH_WINDOW_S, WINDOW_S)
            weights = [
                math.fsum(client.windows[at].rate_per_s for at in windows if at in client.windows)
                for client in pool
            ]
            if not any(weights):  # none of them was active: all alike
                weights = [1.0] * len(pool)
            lengths = [client.lengths_at(start) for client in pool]
            self._mixtures[start] = (
                [each for each in lengths if each is not None],
                list(itertools.accumulate(weights)),
            )
        pool_lengths, reached = self._mixtures[start]
        return random_.choices(pool_lengths, cum_weights=reached)[0]


def spread(random_: random.Random, count: int, gap: Callable[[], float], length_s: float) -> list[float]:
    """`count` times in [0, length_s), rising, whose gaps are draws of `gap` stretched to fill the length. The gaps go round
    a circle that is cut at a random place, so that no part of the length is favoured. Only the shape of `gap` matters, not
    its scale."""
    gaps = array("d", (gap() for _ in range(count)))
    total = math.fsum(gaps)
    if not total > 0:  # gaps so uneven that all are below what a float holds: one burst
        return [random_.random() * length_s] * count
    offset_s = random_.random() * length_s
    scale = length_s / total
    around = (offset_s + elapsed * scale for elapsed in itertools.accumulate(gaps))
    # Rounding must not put a time at the very end, which belongs to the next stretch.
    return sorted(min(at_s % length_s, math.nextafter(length_s, 0.0)) for at_s in around)
