"""Measures that every benchmark shares: quantiles, attainment, goodput.

Pure Python, so that replaying a workload needs no numerical library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.core.types import OUTSIDE_ATTAINMENT

#: The percentiles that tables print.
TABLE_QUANTILES = (0.50, 0.95, 0.99)

_OUTSIDE = frozenset(outcome.value for outcome in OUTSIDE_ATTAINMENT)


def quantile(values: Sequence[float], q: float) -> float | None:
    """The `q`-quantile (0..1) with linear interpolation between order statistics; None of nothing.

    `values` must be sorted in rising order.
    """
    if not values:
        return None
    position = q * (len(values) - 1)
    low = math.floor(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in a few numbers, in the unit of its values; None where there were none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary:
        known = sorted(value for value in values if value is not None)
        return cls(
            count=len(known),
            mean=math.fsum(known) / len(known) if known else None,
            p50=quantile(known, 0.50),
            p90=quantile(known, 0.90),
            p95=quantile(known, 0.95),
            p99=quantile(known, 0.99),
            max=known[-1] if known else None,
        )


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; 1 for the gaps of a Poisson process. None below two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    if mean <= 0:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)) / mean


def mean_rate(arrivals_s: Sequence[float]) -> float | None:
    """Arrivals per second over the span from the first to the last; None below two distinct times."""
    if len(arrivals_s) < 2 or arrivals_s[-1] <= arrivals_s[0]:
        return None
    return (len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0])


@dataclass(frozen=True, slots=True)
class Judged:
    """What attainment needs of one request: its outcome (the contract's word), whether it had an SLO,
    whether it met it."""

    outcome: str
    has_slo: bool
    met: bool


@dataclass(frozen=True, slots=True)
class Attainment:
    """Offered requests with an SLO, those that met it, and their share and rate.

    A rejected or failed request counts as missed; malformed, unauthenticated and cancelled ones are not
    offered. `goodput_per_s` counts met requests over the offered period, the drain left out, so that it is
    attainment x offered rate and runs of one workload compare.
    """

    offered: int
    met: int
    attainment: float | None
    goodput_per_s: float | None


def is_offered(outcome: str) -> bool:
    """Whether an outcome counts in attainment."""
    return outcome not in _OUTSIDE


def attainment(rows: Iterable[Judged], offered_period_s: float | None) -> Attainment:
    """Attainment and goodput of `rows`; `offered_period_s` is the length of the arrivals' window."""
    offered = met = 0
    for row in rows:
        if row.has_slo and is_offered(row.outcome):
            offered += 1
            met += row.met
    share = met / offered if offered else None
    goodput = met / offered_period_s if offered and offered_period_s else None
    return Attainment(offered, met, share, goodput)


def offered_period_s(arrivals_s: Sequence[float]) -> float | None:
    """The window that `arrivals_s` (sorted) fill: their span and one mean gap more."""
    rate = mean_rate(arrivals_s)
    return None if rate is None else len(arrivals_s) / rate
