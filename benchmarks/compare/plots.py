"""Curves of a report: against load, and cost. None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from matplotlib.axes import Axes

from benchmarks.compare.styles import PolicyStyles, Report
from benchmarks.compare.tables import rate_text, three_digits, written
from benchmarks.pages.drawing import Drawing, Point, padded, scale

Cell = Mapping[str, Any]


def shown_rates(report: Report) -> list[float]:
    """Three rates at most: the lowest, the one nearest to what the best policy sustains, the highest."""
    rates: list[float] = report["rates_per_s"]
    if len(rates) <= 3:
        return rates
    return sorted({rates[0], near_capacity(report), rates[-1]})


def near_capacity(report: Report) -> float:
    """The rate nearest to the best capacity that was found, without the ends where there are others; the
    middle one where no capacity is known."""
    rates: list[float] = report["rates_per_s"]
    inner = rates[1:-1] or rates
    known = _known_capacities(report)
    return min(inner, key=lambda rate: abs(rate - max(known))) if known else inner[len(inner) // 2]


def _known_capacities(report: Report) -> list[float]:
    """What policies sustain, or the highest rate at which all seeds of one keep the target."""
    return [
        entry["low_per_s"] if entry["rate_per_s"]["mean"] is None else entry["rate_per_s"]["mean"]
        for entry in report["capacity"]
        if entry["low_per_s"] is not None
    ]


def shown_note(report: Report) -> str:
    """Which rates are shown, where some are not."""
    shown = [rate_text(rate) for rate in shown_rates(report)]
    if len(shown) == len(report["rates_per_s"]):
        return ""
    inner = "the nearest to what the best policy bears" if _known_capacities(report) else "a middle one"
    return (
        f"Shown at {', '.join(shown[:-1])} and {shown[-1]} of {len(report['rates_per_s'])} rates: the lowest,"
        f" {inner}, the highest."
    )


def ends(figure: Mapping[str, Any], factor: float = 1.0) -> tuple[float, float]:
    """The interval of a known figure; its mean twice where it has none."""
    half = figure["half_width"] or 0.0
    return factor * (figure["mean"] - half), factor * (figure["mean"] + half)


def _known(cells: Sequence[Cell], *measures: str) -> list[Cell]:
    return [cell for cell in cells if all(cell["measures"][name]["mean"] is not None for name in measures)]


def attainment(report: Report, styles: PolicyStyles) -> Drawing | None:
    """Attainment against the offered rate, with intervals, the target, and what the oracles found."""
    names = ("attainment", "clairvoyant_attainment", "attainment_upper_bound")
    values = _reach(report, *names)
    if len(report["rates_per_s"]) < 2 or not values:
        return None
    low = max(0.0, min(0.9, int(10 * min(values)) / 10))
    label = "Attainment against offered rate, one line a policy"
    drawing, axes = _rate_drawing(report, label, (100 * low, 100), "requests within their SLO (%)")
    left, right = axes.get_xlim()
    target = 100 * report["attainment_target"]
    drawing.target(axes, (left, target), (right, target))
    _curves(drawing, report, styles, names, 100.0, "{:.1f} %")
    return drawing


def goodput(report: Report, styles: PolicyStyles) -> Drawing | None:
    """Goodput against the offered rate, with what the oracles found."""
    names = ("goodput_per_s", "clairvoyant_goodput_per_s", "goodput_upper_bound_per_s")
    values = _reach(report, *names)
    if len(report["rates_per_s"]) < 2 or not values or max(values) <= 0:
        return None
    label = "Goodput against offered rate, one line a policy"
    drawing, _ = _rate_drawing(report, label, (0, 1.04 * max(values)), "requests within their SLO (1/s)")
    _curves(drawing, report, styles, names, 1.0, "{:.3g}/s")
    return drawing


def _reach(report: Report, measure: str, *oracle: str) -> list[float]:
    """The ends of all policies' intervals, and what the oracles found: what a plot has to hold."""
    known = _known(report["cells"], measure)
    found = [one[name]["mean"] for one in report["oracle"] for name in oracle if known]
    return [
        *(end for cell in known for end in ends(cell["measures"][measure])),
        *(value for value in found if value is not None),
    ]


def _rate_drawing(
    report: Report, label: str, between: tuple[float, float], y_name: str
) -> tuple[Drawing, Axes]:
    rates = report["rates_per_s"]
    drawing = Drawing(label, 540, 340)
    axes = drawing.axes[0]
    scale(axes.xaxis, rates[0], rates[-1], 6, log=rates[0] > 0 and rates[-1] >= 12 * rates[0])
    scale(axes.yaxis, *between)
    axes.set_xlabel("offered requests/s")
    drawing.title(axes, y_name, axis=True)
    return drawing, axes


def _curves(
    drawing: Drawing, report: Report, styles: PolicyStyles, names: Sequence[str], factor: float, write: str
) -> None:
    """The oracles' lines, then one line a policy with its intervals and its name."""
    axes, measure = drawing.axes[0], names[0]
    least, most = axes.get_ylim()
    labels = _oracles(drawing, report, names[1:], factor)
    for policy in report["policies"]:
        css = f"policy {styles[policy].css}"
        known = _known([cell for cell in report["cells"] if cell["policy"] == policy], measure)
        if not known:
            continue
        rates = [cell["rate_per_s"] for cell in known]
        figures = [cell["measures"][measure] for cell in known]
        points = [(rate, factor * figure["mean"]) for rate, figure in zip(rates, figures, strict=True)]
        if any(figure["half_width"] for figure in figures):
            intervals = (ends(figure, factor) for figure in figures)
            band = [
                (x, max(least, low), min(most, high)) for x, (low, high) in zip(rates, intervals, strict=True)
            ]
            drawing.band(axes, band, css)
        drawing.line(axes, points, css)
        for point, figure in zip(points, figures, strict=True):
            value = written(figure, write.format, factor)
            drawing.dot(axes, *point, css, f"{policy} at {rate_text(point[0])}/s: {value}")
        labels.append((points[-1], policy, css))
    drawing.names(axes, labels)


def _oracles(
    drawing: Drawing, report: Report, names: Sequence[str], factor: float
) -> list[tuple[Point, str, str]]:
    """The area between what a clairvoyant schedule reached and what no schedule can pass. Returns its label, if the
    schedule is known for the highest rate."""
    axes = drawing.axes[0]
    reached, bound = (
        {
            one["rate_per_s"]: factor * one[name]["mean"]
            for one in report["oracle"]
            if one[name]["mean"] is not None
        }
        for name in names
    )
    if reached and list(reached) == list(bound):
        drawing.band(axes, [(rate, low, bound[rate]) for rate, low in reached.items()], "oracle")
    for found, name, css in ((bound, "upper bound", "oracle bound"), (reached, "clairvoyant", "oracle")):
        if found:
            drawing.line(axes, list(found.items()), css, 1.2)
        for rate, value in found.items():
            title = f"{name} at {rate_text(rate)}/s: {three_digits(value)}"
            drawing.dot(axes, rate, value, "oracle", title, 2.2)
    last = report["rates_per_s"][-1]
    return [((last, reached[last]), "oracle", "oracle")] if last in reached else []


#: Costs that differ by less than this share are those of one tariff: there is nothing to choose between.
_LEAST_SPREAD = 0.02


def costs_differ(report: Report) -> bool:
    """Whether answers cost more under one policy than under another."""
    costs = [
        cell["measures"]["cost_usd_per_request"]["mean"]
        for cell in _known(report["cells"], "cost_usd_per_request")
    ]
    return bool(costs) and max(costs) - min(costs) > _LEAST_SPREAD * max(costs)


def cost(report: Report, styles: PolicyStyles) -> tuple[str, Drawing] | None:
    """(what the height is, drawing): cost of a thousand answers against quality, or against attainment where
    no quality is known. One line a policy over its rates, a large point at the rate near capacity."""
    for measure, label, factor in (
        ("quality_mean", "mean quality of answers", 1.0),
        ("attainment", "requests within their SLO (%)", 100.0),
    ):
        known = _known(report["cells"], "cost_usd_per_request", measure)
        if known and costs_differ(report):
            return measure, _cost_drawing(report, styles, known, measure, label, factor)
    return None


def _cost_drawing(
    report: Report, styles: PolicyStyles, cells: Sequence[Cell], measure: str, label: str, factor: float
) -> Drawing:
    near = near_capacity(report)
    points = {
        (cell["policy"], cell["rate_per_s"]): (
            1000 * cell["measures"]["cost_usd_per_request"]["mean"],
            factor * cell["measures"][measure]["mean"],
        )
        for cell in cells
    }
    oracle: Sequence[Mapping[str, float]] = next(
        (
            one["quality_cost"]
            for one in report["oracle"]
            if measure == "quality_mean" and one["rate_per_s"] == near and one["quality_cost"]
        ),
        (),
    )
    frontier = [(1000 * point["cost_usd_per_request"], point["quality"]) for point in oracle]
    drawing = Drawing(f"Cost of a thousand answers against {label}", 860, 362)
    axes = drawing.axes[0]
    usd, heights = zip(*points.values(), *frontier, strict=True)
    low, high, _ = padded(usd, far_apart=inf)
    scale(axes.xaxis, low, high, 8)
    low, high, _ = padded(heights, far_apart=inf)
    scale(axes.yaxis, low, high, 8)
    axes.set_xlabel("USD for 1,000 answers")
    drawing.title(axes, label, axis=True)
    if frontier:
        drawing.line(axes, frontier, "oracle", 1.2)
    for x, y in frontier:
        drawing.dot(axes, x, y, "oracle", f"oracle: {three_digits(x)} USD, {y:.3f}", 2.2)
    labels = []
    for policy in report["policies"]:
        css = f"policy {styles[policy].css}"
        own = {rate: point for (name, rate), point in points.items() if name == policy}
        if own:
            drawing.line(axes, list(own.values()), css, 1.6)
        for rate, (x, y) in own.items():
            title = f"{policy} at {rate_text(rate)}/s: {three_digits(x)} USD, {three_digits(y)}"
            drawing.dot(axes, x, y, css, title, 5.5 if rate == near else 2.4)
        if near in own:
            labels.append((own[near], policy, css))
    drawing.names(axes, labels)
    return drawing
