"""Measures that every benchmark shares: quantiles, attainment, goodput, confidence intervals.

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
    std: float | None = None  # of the values themselves, not an estimate for a population

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary:
        known = sorted(value for value in values if value is not None)
        mean = math.fsum(known) / len(known) if known else None
        return cls(
            count=len(known),
            mean=mean,
            p50=quantile(known, 0.50),
            p90=quantile(known, 0.90),
            p95=quantile(known, 0.95),
            p99=quantile(known, 0.99),
            max=known[-1] if known else None,
            std=None if mean is None else _deviation(known, mean),
        )


def _deviation(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; 1 for the gaps of a Poisson process. None below two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    if mean <= 0:
        return None
    return _deviation(values, mean) / mean


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


#: The 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
_STUDENT_T_975 = (
    *(12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041, 2.2621572),
    *(2.2281389, 2.2009852, 2.1788128, 2.1603687, 2.1447867, 2.1314495, 2.1199053, 2.1098156, 2.1009220),
    *(2.0930241, 2.0859634, 2.0796138, 2.0738731, 2.0686576, 2.0638986, 2.0595386, 2.0555294, 2.0518305),
    *(2.0484071, 2.0452296, 2.0422725),
)
_NORMAL_975 = 1.959963985


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution: what a two-sided 95 % interval multiplies with.

    Above 30 degrees of freedom by the Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5).
    """
    if degrees < 1:
        raise ValueError("an interval needs at least one degree of freedom")
    if degrees <= len(_STUDENT_T_975):
        return _STUDENT_T_975[degrees - 1]
    z, n = _NORMAL_975, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of independent repetitions and half the width of its 95 % confidence interval, in the unit of
    the values. `half_width` is None below two values, `mean` of none."""

    count: int
    mean: float | None
    half_width: float | None

    @classmethod
    def of(cls, values: Iterable[float | None], *, resampled: bool = False) -> Interval:
        """Student's interval: the repetitions are taken as independent and about normal. Those that are
        `resampled` from one recording all know the same: their spread s stands for how far that recording may
        be from another of its kind, and the half-width is t s sqrt(1 + 1/n), which more of them do not shrink."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(0, None, None)
        mean = math.fsum(known) / len(known)
        if len(known) == 1:
            return cls(1, mean, None)
        degrees = len(known) - 1
        variance = math.fsum((value - mean) ** 2 for value in known) / degrees
        return cls(
            len(known), mean, student_t_975(degrees) * math.sqrt(variance * (resampled + 1 / len(known)))
        )
