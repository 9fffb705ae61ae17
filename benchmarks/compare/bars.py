"""Bars and strips of a report as SVG elements: outcomes, load of instances, differences. None where there is
nothing to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import log1p
from typing import Any

from benchmarks.compare.looks import OUTCOME_GROUPS
from benchmarks.compare.plots import Looks, Report, costs_differ, figure_of, shown_rates
from benchmarks.compare.svg import Chart, Scale, padded, px, svg
from benchmarks.compare.tables import ENDINGS, Column, endings, rate_text, three_digits, written

# --- outcomes -----------------------------------------------------------------------------------------
_BAR_LEFT, _WIDTH, _FIGURE = 130.0, 1070.0, 108.0
#: Whose figures stand beside the bars even where there are none.
_ALWAYS = ("timed_out_before_decoding_share", "out_of_budget_before_decoding_share")
#: The colours of figures; those of other endings are too pale for text.
_ENDING_CSS = {
    "timed_out_before_decoding_share": "o-time strong",
    "out_of_budget_before_decoding_share": "o-money strong",
}


def outcomes(report: Report, looks: Looks) -> str | None:
    """What became of the requests at the shown rates, one bar a policy, and beside it in figures what ended
    before decoding for lack of time or money; what was cut by budget or refused for its SLO where any was."""
    seen = endings(report["cells"])
    shown = [column for column in ENDINGS if column in seen or column.measure in _ALWAYS]
    right = _WIDTH - _FIGURE * len(shown) - 10
    parts = []
    for place, column in enumerate(shown, start=1):
        first, second = _two_lines(column.heading)
        for line, text in ((13, first), (28, second)):
            parts.append(
                f'<text x="{px(right + _FIGURE * place)}" y="{line}" class="soft" text-anchor="end">{escape(text)}</text>'
            )
    y = 34.0
    for rate in shown_rates(report):
        parts.append(
            f'<text x="{px(_BAR_LEFT)}" y="{px(y + 12)}" class="strong">{rate_text(rate)} requests/s</text>'
        )
        y += 20
        for cell in (one for one in report["cells"] if one["rate_per_s"] == rate):
            bar = "".join((*_outcome_bar(cell, y, right), *_endings(cell, y, right, shown)))
            parts.append(f'<g class="policy {looks[cell["policy"]].css}">{bar}</g>')
            y += 21
        y += 10
    return svg(_WIDTH, y, "What became of the requests, in per cent", parts) if report["cells"] else None


def _two_lines(heading: str) -> tuple[str, str]:
    """A heading cut where it is most even."""
    words = heading.removesuffix(" %").split()
    cuts = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    return min(cuts, key=lambda lines: max(map(len, lines)))


def _outcome_bar(cell: Mapping[str, Any], y: float, right: float) -> Iterator[str]:
    left = _BAR_LEFT
    yield f'<text x="{px(left - 8)}" y="{px(y + 12)}" text-anchor="end">{escape(cell["policy"])}</text>'
    at = left
    for group in OUTCOME_GROUPS:
        share = sum(cell["outcomes"].get(outcome.value, 0.0) for outcome in group.outcomes)
        width = share * (right - left)
        if width > 0.05:
            title = (
                f"{cell['policy']} at {rate_text(cell['rate_per_s'])}/s: {group.label} {100 * share:.2f} %"
            )
            yield (
                f'<rect class="{group.css}" x="{px(at)}" y="{px(y)}" width="{width:.2f}" height="16">'
                f"<title>{escape(title)}</title></rect>"
            )
        at += width


def _endings(cell: Mapping[str, Any], y: float, right: float, shown: Sequence[Column]) -> Iterator[str]:
    for place, column in enumerate(shown, start=1):
        style = (
            _ENDING_CSS.get(column.measure, "strong") if figure_of(cell, column.measure)["mean"] else "soft"
        )
        yield (
            f'<text x="{px(right + _FIGURE * place)}" y="{px(y + 12)}" text-anchor="end" class="{style}">'
            f"{escape(column.text(cell))} %</text>"
        )


# --- load ---------------------------------------------------------------------------------------------
_HEAT_STEPS = 9
_HEAT_COLUMNS = 120
#: How much of the time after the last arrival is shown, as a multiple of the time of arrivals.
_DRAIN_SHOWN = 1.25


def heat_strips(report: Report, rate: float) -> tuple[int, list[tuple[str, str]]] | None:
    """(the highest load, [(policy, SVG)]): requests in flight on each instance over time, one strip an
    instance, at one rate and the first seed. All panels have one scale of colours."""
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
    return most, [(run["policy"], _strips(run, most, end_s)) for run in runs]


def _strips(run: Mapping[str, Any], most: int, end_s: float) -> str:
    left, width, row = 76.0, 230.0, 15.0
    at_s, instances = run["timeline"]["at_s"], run["timeline"]["instances"]
    by_level: dict[int, list[str]] = {}
    parts = []
    for place, (name, loads) in enumerate(instances.items()):
        y = 2 + place * row
        means = _binned(at_s, loads["in_flight"], end_s)
        known = [mean for mean in means if mean is not None]
        parts.append(
            f'<text x="{px(left - 6)}" y="{px(y + 11)}" text-anchor="end">{escape(_short(name))}</text>'
        )
        parts.append(
            f'<text x="{px(left + width + 6)}" y="{px(y + 11)}" class="soft">{_load(sum(known) / len(known)) if known else "-"}</text>'
        )
        levels = [None if mean is None else round(_HEAT_STEPS * log1p(mean) / log1p(most)) for mean in means]
        start = 0
        for end in range(1, len(levels) + 1):
            if end == len(levels) or levels[end] != levels[start]:
                level = levels[start]
                if level:
                    x, w = (left + width * edge / len(levels) for edge in (start, end))
                    by_level.setdefault(level, []).append(f"M{px(x)} {px(y)}H{px(w)}v13H{px(x)}z")
                start = end
    for level, paths in sorted(by_level.items()):
        parts.append(f'<path class="heat" fill-opacity="{level / _HEAT_STEPS:.2f}" d="{"".join(paths)}"/>')
    bottom = 2 + len(instances) * row
    scale = Scale(0, end_s or 1.0, left, left + width)
    parts += [
        f'<text x="{px(scale(value))}" y="{px(bottom + 13)}" class="soft" text-anchor="middle">{value:g}</text>'
        for value in scale.ticks(4)
    ]
    return svg(368, bottom + 18, f"Load of instances over time under {run['policy']}", parts)


def _load(mean: float) -> str:
    """As short as the place beside a strip."""
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.1f}"


def _binned(at_s: Sequence[float], values: Sequence[int], end_s: float) -> list[float | None]:
    """Means over equal pieces of time; an empty piece lies on the straight line between the samples around
    it, one before the first sample is as that one, and what comes after the last is None."""
    sums = [[0.0, 0.0] for _ in range(_HEAT_COLUMNS)]
    for moment, value in zip(at_s, values, strict=True):
        if moment <= end_s:
            one = sums[min(_HEAT_COLUMNS - 1, int(_HEAT_COLUMNS * moment / (end_s or 1.0)))]
            one[0] += value
            one[1] += 1
    sampled = [(index, total / count) for index, (total, count) in enumerate(sums) if count]
    if not sampled:
        return [None] * _HEAT_COLUMNS
    means: list[float | None] = [sampled[0][1]] * (sampled[0][0] + 1)
    for (start, first), (end, last) in pairwise(sampled):
        means += [first + (last - first) * step / (end - start) for step in range(1, end - start + 1)]
    return means + [None] * (_HEAT_COLUMNS - len(means))


def _short(name: str) -> str:
    return name if len(name) <= 11 else name[:10] + "…"


# --- figures with intervals ---------------------------------------------------------------------------
_FIGURES = (
    ("attainment", "attainment (%)", 100.0),
    ("ttft_s_p95", "TTFT p95 (s)", 1.0),
    ("e2e_s_p95", "E2E p95 (s)", 1.0),
    ("cost_usd_per_request", "USD for 1,000 answers", 1000.0),
)


def figures(report: Report, looks: Looks, rate: float) -> str | None:
    """Each policy's figures at one rate: means with intervals, one panel a measure."""
    rows = [(cell["policy"], cell["measures"]) for cell in report["cells"] if cell["rate_per_s"] == rate]
    return _panels(rows, looks, f"Figures at {rate_text(rate)} requests/s", _worth_showing(report))


def differences(report: Report, looks: Looks, rate: float) -> str | None:
    """Each policy less the baseline at one rate, draw by draw, as `figures`."""
    rows = [
        (entry["policy"], entry["differences"]) for entry in report["paired"] if entry["rate_per_s"] == rate
    ]
    label = f"Differences to {report['baseline']} at {rate_text(rate)} requests/s"
    return _panels(rows, looks, label, _worth_showing(report), from_zero=True)


def _worth_showing(report: Report) -> list[tuple[str, str, float]]:
    return [one for one in _FIGURES if one[0] != "cost_usd_per_request" or costs_differ(report)]


def _panels(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    looks: Looks,
    label: str,
    wanted: Sequence[tuple[str, str, float]],
    *,
    from_zero: bool = False,
) -> str | None:
    shown = [one for one in wanted if any(measures[one[0]]["mean"] for _, measures in rows)]
    if not shown:
        return None
    left, row, top = 120.0, 20.0, 24.0
    width = (1070 - left) / len(shown)
    bottom = top + row * len(rows)
    parts = [
        f'<text x="{px(left - 8)}" y="{px(top + row * place + 14)}" text-anchor="end" class="policy {looks[policy].css}">{escape(policy)}</text>'
        for place, (policy, _) in enumerate(rows)
    ]
    for panel, (measure, title, factor) in enumerate(shown):
        known = [
            (place, policy, figure)
            for place, (policy, measures) in enumerate(rows)
            if (figure := measures[measure])["mean"] is not None
        ]
        reach = [
            factor * (figure["mean"] + sign * (figure["half_width"] or 0.0))
            for _, _, figure in known
            for sign in (-1, 1)
        ]
        start = left + panel * width
        scale = _scale([*reach, 0.0] if from_zero else reach, start + 10, start + width - 24)
        chart = Chart(0, 0, scale, Scale(0, 1, bottom, top))
        chart.axes("", "", scale.ticks(4), [])
        name = title.replace("(%)", "(points)") if from_zero else title
        chart.text((scale.start + scale.end) / 2, top - 9, name, anchor="middle", css="strong")
        if from_zero:
            chart.parts.append(f'<path class="axis" d="M{px(scale(0))} {px(bottom)}V{px(top)}"/>')
        for place, policy, figure in known:
            y, css = px(top + row * place + 10), f"policy {looks[policy].css}"
            mean, half = factor * figure["mean"], factor * (figure["half_width"] or 0.0)
            told = f"{policy}: {written(figure, three_digits, factor)}"
            chart.parts.append(
                f'<path class="whisker {css}" d="M{px(scale(mean - half))} {y}H{px(scale(mean + half))}"/>'
                f'<circle class="dot {css}" cx="{px(scale(mean))}" cy="{y}" r="4"><title>{escape(told)}</title></circle>'
            )
        parts += chart.parts
    return svg(1070, bottom + 22, label, parts)


#: Times that are further apart than this are shown by their logarithm.
_FAR_APART = 20


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high > _FAR_APART * low:
        return Scale(low / 1.3, high * 1.3, start, end, log=True)
    return padded(values, start, end)
