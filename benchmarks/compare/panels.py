"""Plots side by side in a report: distributions of latency, and figures with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare.plots import costs_differ, ends, shown_rates
from benchmarks.compare.styles import PolicyStyles, Report
from benchmarks.compare.tables import rate_text, three_digits, written
from benchmarks.pages.drawing import Drawing, padded, scale

_WIDTH = 1070
_LATENCIES = (("ttft_s", "TTFT", "s", 1.0), ("tpot_s", "TPOT", "ms", 1000.0), ("e2e_s", "E2E", "s", 1.0))


def distributions(report: Report, styles: PolicyStyles) -> list[tuple[str, Drawing]]:
    """(rate as text, drawing) for each shown rate: cumulative distributions of TTFT, TPOT and E2E side by side. One
    latency has the same range at all rates, so that rates compare."""
    known = [
        (*latency, between)
        for latency in _LATENCIES
        if (between := _range(report, latency[0], latency[-1])) is not None
    ]
    return [
        (rate_text(rate), _distributions(report, styles, rate, known))
        for rate in shown_rates(report)
        if known
    ]


def _distributions(report: Report, styles: PolicyStyles, rate: float, known: Sequence[Any]) -> Drawing:
    label = f"Distributions of TTFT, TPOT and E2E at {rate_text(rate)} requests/s"
    drawing = Drawing(label, _WIDTH, 266, len(known))
    for axes, (name, title, unit, factor, (low, high)) in zip(drawing.axes, known, strict=True):
        scale(axes.xaxis, low, high, log=True)
        scale(axes.yaxis, 0, 100, 5)
        axes.set_xlabel(f"{title} ({unit})")
        for target in _targets(report, name):
            if low < factor * target < high:
                text = f"SLO: {three_digits(factor * target)} {unit}"
                drawing.target(axes, (factor * target, 0), (factor * target, 100), text)
        for cell in report["cells"]:
            points = _cumulative(cell["curves"][name], factor, low, high)
            if cell["rate_per_s"] == rate and points:
                drawing.line(axes, points, f"policy {styles[cell['policy']].css}", 1.6)
    drawing.title(drawing.axes[0], "answers at or below (%)", axis=True)
    return drawing


def _range(report: Report, name: str, factor: float) -> tuple[float, float] | None:
    """From the 1 % to the 99.5 % quantile of all policies."""
    rates = shown_rates(report)
    curves = [cell["curves"][name] for cell in report["cells"] if cell["rate_per_s"] in rates]
    lows = [curve[2] for curve in curves if curve[2]]
    highs = [curve[-2] for curve in curves if curve[-2]]
    if not lows:
        return None
    return min(lows) * factor, max(*highs, min(lows) * 1.5) * factor


def _cumulative(
    curve: Sequence[float | None], factor: float, low: float, high: float
) -> list[tuple[float, float]]:
    """(value, per cent at or below) between `low` and `high`."""
    return [
        (value * factor, 100 * index / (len(curve) - 1))
        for index, value in enumerate(curve)
        if value is not None and (index % 2 == 0 or index > 180) and low <= value * factor <= high
    ]


def _targets(report: Report, name: str) -> list[float]:
    """The different targets of the workload's SLO classes for one latency."""
    classes: list[Mapping[str, Any]] = next((run["by_slo"] for run in report["runs"] if run["by_slo"]), [])
    return sorted({one[f"slo_{name}"] for one in classes if one[f"slo_{name}"] is not None})


_FIGURES = (
    ("attainment", "attainment (%)", 100.0),
    ("ttft_s_p95", "TTFT p95 (s)", 1.0),
    ("e2e_s_p95", "E2E p95 (s)", 1.0),
    ("cost_usd_per_request", "USD for 1,000 answers", 1000.0),
)


def figures(report: Report, styles: PolicyStyles, rate: float) -> Drawing | None:
    """Each policy's figures at one rate: means with intervals, one plot a measure."""
    rows = [(cell["policy"], cell["measures"]) for cell in report["cells"] if cell["rate_per_s"] == rate]
    return _panels(report, styles, f"Figures at {rate_text(rate)} requests/s", rows)


def differences(report: Report, styles: PolicyStyles, rate: float) -> Drawing | None:
    """Each policy less the baseline at one rate, draw by draw, as `figures`."""
    rows = [
        (entry["policy"], entry["differences"]) for entry in report["paired"] if entry["rate_per_s"] == rate
    ]
    label = f"Differences to {report['baseline']} at {rate_text(rate)} requests/s"
    return _panels(report, styles, label, rows, from_zero=True)


def _panels(
    report: Report,
    styles: PolicyStyles,
    label: str,
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    from_zero: bool = False,
) -> Drawing | None:
    shown = [
        one
        for one in _FIGURES
        if any(measures[one[0]]["mean"] for _, measures in rows)
        and (one[0] != "cost_usd_per_request" or costs_differ(report))
    ]
    if not shown:
        return None
    drawing = Drawing(label, _WIDTH, 60 + 20 * len(rows), len(shown))
    for axes, (measure, title, factor) in zip(drawing.axes, shown, strict=True):
        known = [
            (place, policy, measures[measure])
            for place, (policy, measures) in enumerate(rows)
            if measures[measure]["mean"] is not None
        ]
        reach = [end for _, _, figure in known for end in ends(figure, factor)]
        low, high, log = padded([*reach, 0.0] if from_zero else reach)
        scale(axes.xaxis, low, high, log=log)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.yaxis.set_ticks([])
        drawing.title(axes, title.replace("(%)", "(points)") if from_zero else title)
        if from_zero:
            drawing.target(axes, (0, -0.5), (0, len(rows) - 0.5))
        for place, policy, figure in known:
            text = f"{policy}: {written(figure, three_digits, factor)}"
            css = f"policy {styles[policy].css}"
            drawing.interval(axes, place, factor * figure["mean"], ends(figure, factor), css, text)
    first = drawing.axes[0]
    for place, (policy, _) in enumerate(rows):
        drawing.row_name(first, place, policy, f"policy {styles[policy].css}")
    return drawing
