"""Draws of one recorded trace widen every interval of a report."""

from __future__ import annotations

from typing import Any

from benchmarks.compare.report import report
from tests.unit.benchmarks_compare.made import ABOUT, runs


def half_widths(told: Any) -> list[float]:
    """Every interval's half-width in a report, in order."""
    if isinstance(told, dict):
        if {"count", "mean", "half_width"} <= told.keys():
            return [] if told["half_width"] is None else [told["half_width"]]
        return [width for each in told.values() for width in half_widths(each)]
    if isinstance(told, list):
        return [width for each in told for width in half_widths(each)]
    return []


def test_every_interval_is_as_wide_as_the_trace_leaves_open() -> None:
    plain = runs()
    oracles = [
        {"rate_per_s": rate, "seed": seed, "goodput_upper_bound_per_s": rate - 0.1 * seed}
        for rate in {run["rate_per_s"] for run in plain}
        for seed in range(3)
    ]
    of_one_trace = [{**run, "resampled": run["seed"] != 0} for run in plain]
    asked_of_one = [{**one, "resampled": one["seed"] != 0} for one in oracles]
    narrow = half_widths(_intervals(report(plain, about=ABOUT, complete=True, oracles=oracles)))
    wide = half_widths(_intervals(report(of_one_trace, about=ABOUT, complete=True, oracles=asked_of_one)))
    assert len(narrow) > 50
    # sqrt(1 + 1/n) over sqrt(1/n): of three draws, or of two where the third leaves no gap to speak of.
    ratios = {round(wider / width, 6) for wider, width in zip(wide, narrow, strict=True) if width > 1e-9}
    assert ratios <= {2.0, round(3**0.5, 6)}


def _intervals(told: dict[str, Any]) -> list[Any]:
    return [told[part] for part in ("cells", "paired", "capacity", "oracle", "regret")]
