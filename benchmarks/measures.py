"""Measures that every benchmark shares: quantiles, attainment, goodput, confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from router.core.types import OUTSIDE_ATTAINMENT

_OUTSIDE = frozenset(outcome.value for outcome in OUTSIDE_ATTAINMENT)


def quantile(values: Sequence[float], q: float) -> float | None:
    """The `q`-quantile (0..1) of sorted `values`; None without any."""
    return float(quantiles(values, q)) if len(values) else None


def quantiles(values: npt.ArrayLike, shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Quantiles (0..1) of sorted `values`, of which there is at least one, with linear interpolation between order
    statistics."""
    ordered = np.asarray(values, float)
    return np.asarray(np.interp(np.multiply(shares, len(ordered) - 1), np.arange(len(ordered)), ordered))


def sorted_known(values: Iterable[float | None] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values that are neither None nor NaN, in rising order."""
    known = np.sort(np.array(values if isinstance(values, np.ndarray) else list(values), float))
    return np.asarray(known[~np.isnan(known)])


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
    def of(cls, values: Iterable[float | None] | npt.NDArray[Any]) -> Summary:
        """Of those that are known."""
        known = sorted_known(values)
        if not len(known):
            return cls(0, None, None, None, None, None, None)
        p50, p90, p95, p99 = quantiles(known, (0.50, 0.90, 0.95, 0.99)).tolist()
        return cls(len(known), float(known.mean()), p50, p90, p95, p99, float(known[-1]), float(known.std()))


def coefficient_of_variation(values: npt.ArrayLike) -> float | None:
    """Standard deviation over mean; 1 for the gaps of a Poisson process. None below two values, and without a mean
    above 0."""
    known = np.asarray(values, float)
    if len(known) < 2 or known.mean() <= 0:
        return None
    return float(known.std() / known.mean())


def rate_between(count: int, first_s: float, last_s: float) -> float | None:
    """Arrivals per second over the span from the first to the last; None below two distinct times."""
    return (count - 1) / (last_s - first_s) if count > 1 and last_s > first_s else None


def mean_rate(arrivals_s: Sequence[float]) -> float | None:
    """As `rate_between`, of times that rise."""
    return rate_between(len(arrivals_s), arrivals_s[0], arrivals_s[-1]) if len(arrivals_s) else None


def is_offered(outcome: str) -> bool:
    """Whether an outcome counts in attainment."""
    return outcome not in _OUTSIDE


def attainment(judged: Iterable[tuple[str, bool | None]], offered_period_s: float | None) -> dict[str, Any]:
    """Offered requests with an SLO, those that met it, their share and rate, as reports keep them. Requests are (outcome in
    the contract's word, whether the SLO was met; None without an SLO).

    A rejected or failed request counts as missed; malformed, unauthenticated and cancelled ones are not offered. Goodput is
    over the window of the arrivals, the drain left out, so that it is attainment x offered rate and runs compare.
    """
    kept = [in_time for outcome, in_time in judged if in_time is not None and is_offered(outcome)]
    offered, met = len(kept), sum(kept)
    return {
        "offered_with_slo": offered,
        "met": met,
        "attainment": met / offered if offered else None,
        "goodput_per_s": met / offered_period_s if offered and offered_period_s else None,
    }


def offered_period_s(arrivals_s: Sequence[float]) -> float | None:
    """The window that `arrivals_s` (sorted) fill: their span and one mean gap more."""
    rate = mean_rate(arrivals_s)
    return None if rate is None else len(arrivals_s) / rate


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
        from scipy.special import stdtrit

        degrees = len(known) - 1
        variance = math.fsum((value - mean) ** 2 for value in known) / degrees
        error = math.sqrt(variance * (resampled + 1 / len(known)))
        return cls(len(known), mean, float(stdtrit(degrees, 0.975)) * error)


def difference(ours: float | None, theirs: float | None) -> float | None:
    """The difference of two figures; None where one is not known."""
    return None if ours is None or theirs is None else ours - theirs


def interval(values: Iterable[float | None], *, resampled: bool = False) -> dict[str, Any]:
    """`Interval.of` as reports keep it."""
    return asdict(Interval.of(values, resampled=resampled))
