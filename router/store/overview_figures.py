"""The overview's figures: time windows, groups of outcomes, bins, and the answer made from rows of sums.

Values are binned inside SQL: a balanced tree of comparisons finds a value's bin, and quantiles are read from the counts. So
both databases bin values without loading rows into this process, and without functions that one of them lacks (not every
build of SQLite has logarithms).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, case, literal_column

from router.core.types import Outcome

_Name = TypeVar("_Name")


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


#: Names shown in each split of the spending; the others are summed.
MAX_NAMES = 20

#: Seconds, 1 ms to 10,000 s in steps of 15 %.
TIME_BINS = Bins.logarithmic(0.001, 10_000.0, 16)
#: Actual over predicted, 1/20 to 20 in steps of 12 %.
RATIO_BINS = Bins.logarithmic(0.05, 20.0, 20)

TIMES = ("ttft_s", "tpot_s", "e2e_s")
#: Predicted quantities: the column with the actual value and the column with the predicted median.
PREDICTED = {
    "ttft": ("ttft_s", "predicted_ttft_s_p50"),
    "e2e": ("e2e_s", "predicted_e2e_s_p50"),
    "output_tokens": ("output_tokens", "predicted_output_tokens_p50"),
}
SPLITS = {"policy": "policy", "model": "model", "key": "key_name"}

#: Outcomes by what a person wants to know first: answered, cut short, or why nothing was decoded.
_ALWAYS = {
    Outcome.OK: "ok",
    Outcome.LATE: "late",
    Outcome.EXPIRED_MID_DECODE: "cut_short",
    Outcome.BUDGET_EXHAUSTED_MID_DECODE: "cut_short",
    Outcome.EXPIRED_IN_QUEUE: "timed_out",
    Outcome.EXPIRED_BEFORE_FIRST_TOKEN: "timed_out",
    Outcome.REJECTED_BUDGET: "out_of_budget",
}
_BY_DECODED = {
    Outcome.BACKEND_ERROR: ("failed", "cut_short"),
    Outcome.CLIENT_CANCELLED: ("left", "stopped"),
}


def group_of(outcome: str, decoded: bool) -> str:
    """The group of an outcome of a request that has `decoded` tokens or none."""
    known = Outcome(outcome)
    if known in _BY_DECODED:
        return _BY_DECODED[known][decoded]
    return _ALWAYS.get(known, "rejected")


#: Sums over requests.
SUMS = ("offered", "met", "prompt_tokens", "output_tokens", "cost_usd")


@dataclass(frozen=True, slots=True)
class Window:
    """A time window in seconds since the epoch, in `buckets` of `bucket_s` that begin at multiples of it. The last one is
    not over."""

    until: float
    bucket_s: float
    buckets: int

    @classmethod
    def ending(cls, until: float, window_s: float, buckets: int) -> Window:
        return cls(until, window_s / buckets, buckets)

    @property
    def since(self) -> float:
        return (self.until // self.bucket_s - self.buckets + 1) * self.bucket_s

    def starts(self) -> list[float]:
        """The beginning of each bucket."""
        return [self.since + at * self.bucket_s for at in range(self.buckets)]


@dataclass(slots=True)
class Tally:
    """Collects the rows of sums. Each row that was read stands for `scale` requests."""

    scale: float
    outcomes: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    groups: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sums: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    bins: dict[str, dict[int, Counter[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )
    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, row: Mapping[str, Any]) -> None:
        part, at, n = row["part"], row["at"], row["n"]
        if part == "outcome":
            self.outcomes[at][row["name"]] += n
            self.groups[at][group_of(row["name"], bool(row["bin"]))] += n
            for name in SUMS:
                self.sums[at][name] += float(row[name])
        elif part in SPLITS:
            split = {"name": row["name"], "requests": round(n * self.scale), **self._amounts(row)}
            self.splits[part].append(split)
        else:
            self.bins[part][at][row["bin"]] = n

    def answer(self, window: Window, counted: int) -> dict[str, Any]:
        """The part of the answer that the rows make."""
        total = {name: sum(sums[name] for sums in self.sums.values()) for name in SUMS}
        return {
            "totals": {
                "requests": counted,
                "outcomes": self._scaled(_sum(self.outcomes)),
                "groups": self._scaled(_sum(self.groups)),
                **self._kept(total, window.until - window.since),
                **self._amounts(total),
            },
            "buckets": [self._bucket(at, start, window) for at, start in enumerate(window.starts())],
            "latency": {name: self._latency(_sum(self.bins[name])) for name in TIMES},
            "prediction": {name: _spread(_sum(self.bins[f"ratio_{name}"])) for name in PREDICTED},
            "spend": {name: self._with_rest(self.splits[name], counted, total) for name in SPLITS},
        }

    def _bucket(self, at: int, start: float, window: Window) -> dict[str, Any]:
        seconds = min(window.bucket_s, window.until - start)
        outcomes = self._scaled(self.outcomes[at])
        return {
            "start": start,
            "seconds": seconds,
            "requests": sum(outcomes.values()),
            "outcomes": outcomes,
            "groups": self._scaled(self.groups[at]),
            **self._kept(self.sums[at], seconds),
            **self._amounts(self.sums[at]),
            **{name: _quantiles(self.bins[name][at]) for name in TIMES},
            "prediction": {name: _spread(self.bins[f"ratio_{name}"][at]) for name in PREDICTED},
        }

    def _kept(self, sums: Mapping[str, float], seconds: float) -> dict[str, Any]:
        offered, met = sums["offered"], sums["met"]
        return {
            "offered": round(offered * self.scale),
            "met": round(met * self.scale),
            "attainment": met / offered if offered else None,
            "goodput_per_s": met * self.scale / seconds if seconds > 0 else None,
        }

    def _amounts(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "prompt_tokens": round(float(sums["prompt_tokens"]) * self.scale),
            "output_tokens": round(float(sums["output_tokens"]) * self.scale),
            "cost_usd": float(sums["cost_usd"]) * self.scale,
        }

    def _latency(self, counts: Counter[int]) -> dict[str, Any]:
        histogram = []
        for index in sorted(counts):
            low, high = TIME_BINS.bounds(index)
            histogram.append({"low_s": low, "high_s": high, "count": round(counts[index] * self.scale)})
        return {**_quantiles(counts), "histogram": histogram}

    def _with_rest(
        self, named: list[dict[str, Any]], counted: int, total: Mapping[str, float]
    ) -> dict[str, Any]:
        """The most expensive names, and the sum of the others."""
        rest = {
            name: value - sum(each[name] for each in named) for name, value in self._amounts(total).items()
        }
        others = max(0, counted - sum(each["requests"] for each in named))
        return {"names": named, "others": {"requests": others, **rest} if len(named) == MAX_NAMES else None}

    def _scaled(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {name: round(n * self.scale) for name, n in sorted(counts.items())}


def _sum(by_bucket: Mapping[int, Counter[_Name]]) -> Counter[_Name]:
    return sum(by_bucket.values(), Counter())


def _quantiles(counts: Counter[int]) -> dict[str, Any]:
    quantile = TIME_BINS.quantile
    return {"p50": quantile(counts, 0.5), "p95": quantile(counts, 0.95), "p99": quantile(counts, 0.99)}


def _spread(counts: Counter[int]) -> dict[str, Any]:
    """Quantiles of actual over predicted: 1 is right, 2 took twice as long as predicted."""
    quantile = RATIO_BINS.quantile
    return {
        "count": counts.total(),
        "p10": quantile(counts, 0.1),
        "p50": quantile(counts, 0.5),
        "p90": quantile(counts, 0.9),
    }
