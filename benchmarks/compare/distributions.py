"""Distributions of latency in a report as SVG elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare.plots import Looks, Report, shown_rates
from benchmarks.compare.svg import Chart, Scale, px, svg
from benchmarks.compare.tables import rate_text, three_digits

_LATENCIES = (("ttft_s", "TTFT", "s", 1.0), ("tpot_s", "TPOT", "ms", 1000.0), ("e2e_s", "E2E", "s", 1.0))


def distributions(report: Report, looks: Looks) -> list[tuple[float, str]]:
    """(rate, SVG) for each shown rate: cumulative distributions of TTFT, TPOT and E2E side by side. One
    measure has the same range at all rates, so that rates compare."""
    ranges = {name: _curve_range(report, name, factor) for name, _, _, factor in _LATENCIES}
    found = []
    for rate in shown_rates(report):
        parts: list[str] = []
        for place, (name, title, unit, factor) in enumerate(_LATENCIES):
            between = ranges[name]
            if between is None:
                continue
            left = 40 + place * 352
            chart = Chart(0, 0, Scale(*between, left, left + 306, log=True), Scale(0, 100, 226, 30))
            chart.axes(
                f"{title} ({unit})",
                "answers at or below (%)" if place == 0 else "",
                chart.x.ticks(6),
                [0, 25, 50, 75, 100],
            )
            for target in _targets(report, name):
                if not between[0] < target * factor < between[1]:
                    continue
                at = px(chart.x(target * factor))
                chart.parts.append(
                    f'<path class="target" d="M{at} 226V30"><title>SLO: {three_digits(target * factor)} {unit}</title></path>'
                )
            for cell in (one for one in report["cells"] if one["rate_per_s"] == rate):
                points = _cumulative(cell["curves"][name], factor, between)
                chart.line(points, f"thin policy {looks[cell['policy']].css}")
            parts += chart.parts
        if parts:
            label = f"Distributions of TTFT, TPOT and E2E at {rate_text(rate)} requests/s"
            found.append((rate, svg(1070, 266, label, parts)))
    return found


def _curve_range(report: Report, name: str, factor: float) -> tuple[float, float] | None:
    """From the 1 % to the 99.5 % quantile of all policies."""
    rates = shown_rates(report)
    curves = [cell["curves"][name] for cell in report["cells"] if cell["rate_per_s"] in rates]
    lows = [curve[2] for curve in curves if curve[2]]
    highs = [curve[-2] for curve in curves if curve[-2]]
    if not lows:
        return None
    return min(lows) * factor, max(*highs, min(lows) * 1.5) * factor


def _cumulative(
    curve: Sequence[float | None], factor: float, between: tuple[float, float]
) -> list[tuple[float, float]]:
    """(value, per cent at or below), without what lies outside of the plot."""
    low, high = between
    points = [
        (value * factor, 100 * index / (len(curve) - 1))
        for index, value in enumerate(curve)
        if value is not None and (index % 2 == 0 or index > 180)
    ]
    return [point for point in points if low <= point[0] <= high]


def _targets(report: Report, name: str) -> list[float]:
    """The different targets of the workload's SLO classes for one latency."""
    classes: list[Mapping[str, Any]] = next((run["by_slo"] for run in report["runs"] if run["by_slo"]), [])
    return sorted({one[f"slo_{name}"] for one in classes if one[f"slo_{name}"] is not None})
