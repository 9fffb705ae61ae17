"""What stands side by side in a report: distributions of latency, figures with their intervals, how requests ended, and the load of
instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log1p
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.compare.plots import costs_differ, ends, shown_rates
from benchmarks.compare.styles import OUTCOME_GROUPS, PolicyStyles, Report
from benchmarks.compare.tables import ENDINGS, endings, rate_text, three_digits, written
from benchmarks.pages import Cell
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


#: Whose figures stand beside the bars, in the colours of these classes, even where they are 0. Those of other
#: endings are too pale for text.
_ENDING_CSS = {
    "timed_out_before_decoding_share": "o-time",
    "out_of_budget_before_decoding_share": "o-money",
}


def outcomes(report: Report, styles: PolicyStyles) -> dict[str, Any]:
    """What became of the requests: `groups` that some ended in as (CSS class, name), and `bars` by shown rate, one a policy, whose
    `parts` are (CSS class, per cent, title). Beside each in `figures` (with `headings`) what ended before decoding for lack of time
    or money, and what was cut by budget or refused for its SLO where any was."""
    seen = {name for cell in report["cells"] for name in cell["outcomes"]}
    shown = [
        column for column in ENDINGS if column.measure in _ENDING_CSS or column in endings(report["cells"])
    ]

    def bar(cell: Mapping[str, Any]) -> dict[str, Any]:
        parts = []
        for group in OUTCOME_GROUPS:
            percent = 100 * sum(cell["outcomes"].get(outcome.value, 0.0) for outcome in group.outcomes)
            if percent > 0.005:
                title = (
                    f"{cell['policy']} at {rate_text(cell['rate_per_s'])}/s: {group.label} {percent:.2f} %"
                )
                parts.append((group.css, percent, title))
        figures = [
            Cell(
                f"{column.text(cell)} %",
                css=f"strong {_ENDING_CSS.get(column.measure, '')}".strip()
                if cell["measures"][column.measure]["mean"]
                else "soft",
            )
            for column in shown
        ]
        css = styles[cell["policy"]].css
        return {"policy": cell["policy"], "css": css, "parts": parts, "figures": figures}

    return {
        "groups": [
            (group.css, group.label)
            for group in OUTCOME_GROUPS
            if seen.intersection(outcome.value for outcome in group.outcomes)
        ],
        "headings": [column.heading.removesuffix(" %") for column in shown],
        "bars": [
            (rate_text(rate), [bar(cell) for cell in report["cells"] if cell["rate_per_s"] == rate])
            for rate in shown_rates(report)
        ],
    }


#: Steps of colour of a strip, and pieces of time in it.
HEAT_STEPS = 9
_PIECES = 120
#: How much of the time after the last arrival is shown, as a multiple of the time of arrivals.
_DRAIN_SHOWN = 1.25


def load(report: Report, styles: PolicyStyles, rate: float) -> dict[str, Any] | None:
    """Requests in flight on each instance over time at one rate and the first seed. All `panels`, which are (policy, CSS class,
    strips), have one scale of colours, up to the highest load `most`; `ticks` of the time are (seconds, per cent)."""
    runs = [run for run in report["runs"] if run["rate_per_s"] == rate and run["timeline"]]
    most = max(
        (
            value
            for run in runs
            for loads in run["timeline"]["instances"].values()
            for value in loads["in_flight"]
        ),
        default=0,
    )
    if not most:
        return None
    # What overload leaves to drain may last many times longer than the arrivals.
    end_s = min(
        max(run["timeline"]["at_s"][-1] for run in runs),
        max(_DRAIN_SHOWN * run["requests"] / (run["measured_rate_per_s"] or 1.0) for run in runs),
    )
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, end_s or 1.0)
    return {
        "most": most,
        "ticks": [
            (f"{at_s:g}", 100 * at_s / (end_s or 1.0)) for at_s in ticks if 0 <= at_s <= (end_s or 1.0)
        ],
        "panels": [
            (run["policy"], styles[run["policy"]].css, _strips(run["timeline"], most, end_s)) for run in runs
        ],
    }


def _strips(timeline: Mapping[str, Any], most: int, end_s: float) -> list[dict[str, Any]]:
    """The load of each instance: `pieces` of one colour as (step of colour, start, end in per cent of the time), and the mean."""
    strips = []
    for name, loads in timeline["instances"].items():
        means = _binned(timeline["at_s"], loads["in_flight"], end_s)
        steps = [0 if mean is None else round(HEAT_STEPS * log1p(mean) / log1p(most)) for mean in means]
        edges = [0, *(at for at in range(1, len(steps)) if steps[at] != steps[at - 1]), len(steps)]
        pieces = [
            (steps[start], 100 * start / len(steps), 100 * end / len(steps)) for start, end in pairwise(edges)
        ]
        known = [mean for mean in means if mean is not None]
        mean = sum(known) / len(known) if known else None
        shown = "-" if mean is None else f"{mean:,.{0 if mean >= 100 else 1}f}"
        strips.append({"instance": name, "pieces": pieces, "mean": shown})
    return strips


def _binned(at_s: Sequence[float], values: Sequence[int], end_s: float) -> list[float | None]:
    """Means over equal pieces of time. An empty piece lies on the straight line between the samples around it, one
    before the first sample is as that one, and what comes after the last is None."""
    span_s = (0.0, end_s or 1.0)
    counts, _ = np.histogram(at_s, _PIECES, span_s)
    sums, _ = np.histogram(at_s, _PIECES, span_s, weights=values)
    sampled = np.flatnonzero(counts)
    if not len(sampled):
        return [None] * _PIECES
    means = np.interp(np.arange(sampled[-1] + 1), sampled, sums[sampled] / counts[sampled]).tolist()
    return [*means, *[None] * (_PIECES - len(means))]
