"""What the columns of a simulated run come to, in NumPy: a million requests take well below a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measures import Summary
from benchmarks.simulator.outcomes import OUTCOMES
from router.core.types import Outcome

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Answers that were delivered to their end.
COMPLETE = (Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE)
#: More different SLOs than this are not classes but a spread.
_MAX_SLO_CLASSES = 12
_SLOS = ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s")


def five_digits(value: float) -> float | None:
    """Five digits: what a plot can show. None for NaN."""
    return None if isnan(value) else float(f"{value:.5g}")


def is_one_of(codes: npt.NDArray[np.uint8], outcomes: Iterable[Outcome]) -> Flags:
    return np.isin(codes, [OUTCOMES.index(outcome) for outcome in outcomes])


def counted(names: Sequence[str], codes: npt.NDArray[Any]) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(names))
    found = [(name, int(count)) for name, count in zip(names, counts, strict=True) if count]
    return dict(sorted(found, key=lambda item: (-item[1], item[0])))


def weighted_summary(values: npt.NDArray[Any], weights: npt.NDArray[Any]) -> Summary:
    """A distribution in which each value stands `weight` times: a quantile is the first value at which the
    weights up to it reach their share."""
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return Summary.of(())
    value, weight = values[known].astype(np.float64), weights[known].astype(np.float64)
    shares = (0.50, 0.90, 0.95, 0.99)
    p50, p90, p95, p99 = np.quantile(value, shares, weights=weight, method="inverted_cdf").tolist()
    mean = float(np.average(value, weights=weight))
    std = float(np.sqrt(np.average((value - mean) ** 2, weights=weight)))
    return Summary(int(weight.sum()), mean, p50, p90, p95, p99, float(value.max()), std)


def mean_of(values: npt.NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


def peak_of(arrival_s: Floats, end_s: Floats) -> int:
    """Most requests at once, from arrival to end; one that ends as another comes is gone."""
    starts, ends = np.sort(arrival_s), np.sort(end_s)
    gone = np.searchsorted(ends, starts, side="right")
    return int((np.arange(1, len(starts) + 1) - gone).max(initial=0))


def by_slo(columns: Mapping[str, npt.NDArray[Any]], judged: Flags, met: Flags) -> list[dict[str, Any]] | None:
    """Attainment by different SLO, the tightest first; None where there are too many to be classes."""
    targets = np.stack([columns[name][judged] for name in _SLOS])
    # Told apart by the bits of a multiplicative hash: sorting one column is much faster than sorting rows.
    bits = np.ascontiguousarray(targets).view(np.uint32).astype(np.uint64)
    keys = (bits[0] * np.uint64(0x9E3779B97F4A7C15) ^ bits[1]) * np.uint64(0xC2B2AE3D27D4EB4F) ^ bits[2]
    _, first, members = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) > _MAX_SLO_CLASSES:
        return None
    offered = np.bincount(members, minlength=len(first))
    kept = np.bincount(members, weights=met[judged], minlength=len(first))
    classes = [
        {
            **dict(zip(_SLOS, map(five_digits, targets[:, place].tolist()), strict=True)),
            "offered": int(offered[index]),
            "met": int(kept[index]),
            "attainment": float(kept[index] / offered[index]),
        }
        for index, place in enumerate(first)
    ]
    return sorted(classes, key=lambda one: [np.inf if one[name] is None else one[name] for name in _SLOS])


def prediction_errors(
    columns: Mapping[str, npt.NDArray[Any]], met: Flags, judged: Flags
) -> dict[str, Any] | None:
    """Predictions at dispatch against what happened; None if the policy uses none."""
    ttft_s, p50, p95 = (columns[name] for name in ("ttft_s", "predicted_ttft_s_p50", "predicted_ttft_s_p95"))
    p_miss = columns["p_miss"]
    known = ~np.isnan(ttft_s) & ~np.isnan(p95)
    with_p_miss = judged & ~np.isnan(p_miss)
    if not known.any():
        return None
    e2e_known = is_one_of(columns["outcome"], COMPLETE) & ~np.isnan(columns["predicted_e2e_s_p50"])
    return {
        "count": int(known.sum()),
        "ttft_p95_coverage": float((ttft_s[known] <= p95[known]).mean()),
        "ttft_p50_median_relative_error": _relative_error(p50[known], ttft_s[known]),
        "e2e_p50_median_relative_error": _relative_error(
            columns["predicted_e2e_s_p50"][e2e_known], columns["e2e_s"][e2e_known]
        ),
        "p_miss_mean": mean_of(p_miss[with_p_miss]),
        "missed_share": float(1 - met[with_p_miss].mean()) if with_p_miss.any() else None,
    }


def _relative_error(predicted: npt.NDArray[Any], actual: npt.NDArray[Any]) -> float | None:
    """Median of |predicted - actual| / actual."""
    usable = (actual > 0) & ~np.isnan(predicted)
    if not usable.any():
        return None
    return float(np.median(np.abs(predicted[usable] - actual[usable]) / actual[usable]))
