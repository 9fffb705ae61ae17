"""A histogram for Prometheus."""

from __future__ import annotations

from bisect import bisect_left

from router.compiled import CONSTRUCTS


class Histogram:
    """Counts of values by inclusive upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


if CONSTRUCTS:
    from router.native.construction import Histogram  # type: ignore[no-redef]
