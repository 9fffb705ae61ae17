"""Logarithmic bins inside SQL: a balanced tree of comparisons finds a value's bin, and quantiles are read from the counts.

So both databases bin values without loading rows into this process, and without functions that one of them lacks (not
every build of SQLite has logarithms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, literal_column


@dataclass(frozen=True, slots=True)
class Bins:
    """Bin i holds values above `edges[i - 1]` up to `edges[i]`; the first and the last are open."""

    edges: tuple[float, ...]

    @classmethod
    def logarithmic(cls, low: float, high: float, a_decade: int) -> Bins:
        """Edges from `low` to at least `high`, `a_decade` of them for each factor of ten."""
        edges = [low]
        while edges[-1] < high * (1 - 1e-9):
            edges.append(low * 10 ** (len(edges) / a_decade))
        return cls(tuple(edges))

    def index(self, value: ColumnElement[Any]) -> ColumnElement[Any]:
        """The bin of a value as SQL; NULL for NULL."""
        edges: list[ColumnElement[float]] = [literal_column(repr(edge)) for edge in self.edges]
        return case((value.is_(None), None), else_=tree(value, edges))

    def bounds(self, index: int) -> tuple[float, float]:
        """Lower and upper edge of a bin. The open ends of the first and last bin are one bin's width away."""
        edges = self.edges
        step = edges[1] / edges[0]
        low = edges[index - 1] if index > 0 else edges[0] / step
        high = edges[index] if index < len(edges) else edges[-1] * step
        return low, high

    def quantile(self, counts: Mapping[int, int], share: float) -> float | None:
        """The quantile `share` of the counted values, interpolated within its bin on a logarithmic scale; None without
        values. The true quantile lies in the same bin."""
        total = sum(counts.values())
        if not total:
            return None
        left = share * total
        for index in sorted(counts):
            if left <= counts[index]:
                low, high = self.bounds(index)
                return float(low * (high / low) ** (left / counts[index]))
            left -= counts[index]
        return self.bounds(max(counts))[1]


def tree(
    value: ColumnElement[Any], edges: Sequence[ColumnElement[float]], first: int = 0
) -> ColumnElement[Any]:
    """How many of the ascending `edges` lie below `value`, plus `first`."""
    if not edges:
        return literal_column(str(first))
    middle = len(edges) // 2
    return case(
        (value <= edges[middle], tree(value, edges[:middle], first)),
        else_=tree(value, edges[middle + 1 :], first + middle + 1),
    )
