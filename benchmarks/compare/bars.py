"""Bars and strips of a report, for its template: how requests ended, and the load of instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log1p
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.compare.plots import shown_rates
from benchmarks.compare.styles import OUTCOME_GROUPS, PolicyStyles, Report
from benchmarks.compare.tables import ENDINGS, endings, rate_text
from benchmarks.pages import Cell

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
