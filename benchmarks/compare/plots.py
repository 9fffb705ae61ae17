"""Curves of a report as SVG elements: against load, and cost. None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.compare.looks import Look
from benchmarks.compare.svg import Chart, Scale, padded, px
from benchmarks.compare.tables import rate_text, three_digits, written

Report = Mapping[str, Any]
Looks = Mapping[str, Look]
Cell = Mapping[str, Any]


def shown_rates(report: Report) -> list[float]:
    """Three rates at most: the lowest, the one nearest to what the best policy bears, the highest."""
    rates: list[float] = report["rates_per_s"]
    if len(rates) <= 3:
        return rates
    return sorted({rates[0], near_capacity(report), rates[-1]})


def near_capacity(report: Report) -> float:
    """The rate nearest to the best capacity that was found, the ends left out where there are others; the
    middle one without any."""
    rates: list[float] = report["rates_per_s"]
    inner = rates[1:-1] or rates
    known = _known_capacities(report)
    return min(inner, key=lambda rate: abs(rate - max(known))) if known else inner[len(inner) // 2]


def _known_capacities(report: Report) -> list[float]:
    """What policies bear, or the highest rate at which all seeds of one keep the target."""
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


def _by_policy(report: Report) -> dict[str, list[Cell]]:
    """Cells by policy, rising in rate; the baseline and other greys are drawn first, so they lie below."""
    return {
        policy: [cell for cell in report["cells"] if cell["policy"] == policy]
        for policy in report["policies"]
    }


def figure_of(cell: Cell, measure: str) -> Mapping[str, Any]:
    figure: Mapping[str, Any] = cell["measures"][measure]
    return figure


# --- against load -------------------------------------------------------------------------------------
def attainment(report: Report, looks: Looks) -> str | None:
    """Attainment against the offered rate, with intervals, the target, and the oracles' bracket."""
    rates = report["rates_per_s"]
    shares = _ends(report, "attainment", ("clairvoyant_attainment", "attainment_upper_bound"))
    if len(rates) < 2 or not shares:
        return None
    low = max(0.0, min(0.9, int(10 * min(shares)) / 10))
    chart = _rate_chart(rates, Scale(100 * low, 100, 300, 26), "requests within their SLO (%)")
    target = px(chart.y(100 * report["attainment_target"]))
    chart.parts.append(f'<path class="target" d="M{px(chart.x.start)} {target}H{px(chart.x.end)}"/>')
    _bracket(
        chart,
        report,
        lambda one: _percent(one["clairvoyant_attainment"]["mean"]),
        lambda one: _percent(one["attainment_upper_bound"]["mean"]),
    )
    _curves(chart, report, looks, "attainment", 100.0, "{:.1f} %")
    return chart.render("Attainment against offered rate, one line a policy")


def goodput(report: Report, looks: Looks) -> str | None:
    """Goodput against the offered rate, with the oracles' bracket."""
    rates = report["rates_per_s"]
    values = _ends(report, "goodput_per_s", ("clairvoyant_goodput_per_s", "goodput_upper_bound_per_s"))
    if len(rates) < 2 or not values or max(values) <= 0:
        return None
    chart = _rate_chart(rates, Scale(0, max(values) * 1.04, 300, 26), "requests within their SLO (1/s)")
    _bracket(
        chart,
        report,
        lambda one: one["clairvoyant_goodput_per_s"]["mean"],
        lambda one: one["goodput_upper_bound_per_s"]["mean"],
    )
    _curves(chart, report, looks, "goodput_per_s", 1.0, "{:.3g}/s")
    return chart.render("Goodput against offered rate, one line a policy")


def _ends(report: Report, measure: str, oracle: Sequence[str]) -> list[float]:
    """The ends of all policies' intervals and what the oracles say: what a chart has to hold."""
    ends = [
        figure["mean"] + sign * (figure["half_width"] or 0.0)
        for cell in report["cells"]
        if (figure := figure_of(cell, measure))["mean"] is not None
        for sign in (-1, 1)
    ]
    if not ends:
        return []
    return ends + [
        value for one in report["oracle"] for name in oracle if (value := one[name]["mean"]) is not None
    ]


def _rate_chart(rates: Sequence[float], y: Scale, y_label: str) -> Chart:
    log = rates[0] > 0 and rates[-1] >= 12 * rates[0]
    chart = Chart(540, 340, Scale(rates[0], rates[-1], 44, 424, log), y)
    chart.axes("offered requests/s", y_label, chart.x.ticks(6), chart.y.ticks(5))
    return chart


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _bracket(
    chart: Chart,
    report: Report,
    found: Callable[[Mapping[str, Any]], float | None],
    bound: Callable[[Mapping[str, Any]], float | None],
) -> None:
    """The area between what a clairvoyant schedule reached and what no schedule can pass."""
    reached = [(one["rate_per_s"], value) for one in report["oracle"] if (value := found(one)) is not None]
    limit = [(one["rate_per_s"], value) for one in report["oracle"] if (value := bound(one)) is not None]
    if [rate for rate, _ in reached] == [rate for rate, _ in limit]:
        chart.band(
            [(rate, low, high) for (rate, low), (_, high) in zip(reached, limit, strict=True)], "oracle"
        )
    chart.line(limit, "oracle bound")
    chart.line(reached, "oracle")
    for points, name in ((reached, "clairvoyant"), (limit, "upper bound")):
        for rate, value in points:
            chart.dot((rate, value), "oracle", f"{name} at {rate_text(rate)}/s: {three_digits(value)}", 2.2)


def _curves(chart: Chart, report: Report, looks: Looks, measure: str, factor: float, write: str) -> None:
    labels = []
    for policy, own in _by_policy(report).items():
        css = f"policy {looks[policy].css}"
        known = [cell for cell in own if figure_of(cell, measure)["mean"] is not None]
        points = [(cell["rate_per_s"], factor * figure_of(cell, measure)["mean"]) for cell in known]
        if not points:
            continue
        if any(figure_of(cell, measure)["half_width"] for cell in known):
            chart.band(
                [
                    (rate, mean - half, mean + half)
                    for (rate, mean), cell in zip(points, known, strict=True)
                    for half in [factor * (figure_of(cell, measure)["half_width"] or 0.0)]
                ],
                css,
            )
        chart.line(points, css)
        for point, cell in zip(points, known, strict=True):
            value = written(figure_of(cell, measure), write.format, factor)
            chart.dot(point, css, f"{policy} at {rate_text(point[0])}/s: {value}")
        labels.append((points[-1][1], policy, css))
    last = report["oracle"][-1] if report["oracle"] else None
    if last is not None and last["rate_per_s"] == chart.x.high:
        name = "clairvoyant_attainment" if measure == "attainment" else "clairvoyant_goodput_per_s"
        if last[name]["mean"] is not None:
            labels.append((factor * last[name]["mean"], "oracle", "oracle"))
    chart.end_labels(labels)


#: Costs that differ by less are those of one tariff: there is nothing to choose between.
_LEAST_SPREAD = 0.02


# --- cost ---------------------------------------------------------------------------------------------
def cost(report: Report, looks: Looks) -> tuple[str, str] | None:
    """(what the height says, SVG): cost of a thousand answers against quality, or against attainment where
    no quality is known. One line a policy over its rates, a large point at the rate near capacity."""
    for measure, label, factor in (
        ("quality_mean", "mean quality of answers", 1.0),
        ("attainment", "requests within their SLO (%)", 100.0),
    ):
        known = [
            cell
            for cell in report["cells"]
            if figure_of(cell, "cost_usd_per_request")["mean"] is not None
            and figure_of(cell, measure)["mean"] is not None
        ]
        if known and costs_differ(report):
            return measure, _cost_chart(report, looks, known, measure, label, factor)
    return None


def costs_differ(report: Report) -> bool:
    """Whether answers cost more under one policy than under another."""
    costs = [
        mean
        for cell in report["cells"]
        if (mean := figure_of(cell, "cost_usd_per_request")["mean"]) is not None
    ]
    return bool(costs) and max(costs) - min(costs) > _LEAST_SPREAD * max(costs)


def _cost_chart(
    report: Report, looks: Looks, cells: Sequence[Cell], measure: str, label: str, factor: float
) -> str:
    near = near_capacity(report)
    oracle: list[Mapping[str, float]] = next(
        (
            one["quality_cost"]
            for one in report["oracle"]
            if one["rate_per_s"] == near and one["quality_cost"]
        ),
        [],
    )
    frontier = (
        [(1000 * point["cost_usd_per_request"], point["quality"]) for point in oracle]
        if measure == "quality_mean"
        else []
    )
    place = {
        (cell["policy"], cell["rate_per_s"]): (
            1000 * figure_of(cell, "cost_usd_per_request")["mean"],
            factor * figure_of(cell, measure)["mean"],
        )
        for cell in cells
    }
    all_points = [*place.values(), *frontier]
    x = padded([usd for usd, _ in all_points], 60, 700)
    y = padded([height for _, height in all_points], 320, 26)
    chart = Chart(860, 362, x, y)
    chart.axes("USD for 1,000 answers", label, chart.x.ticks(8), chart.y.ticks(8))
    if frontier:
        chart.line(frontier, "oracle")
        for point in frontier:
            chart.dot(point, "oracle", f"oracle: {three_digits(point[0])} USD, {point[1]:.3f}", 2.2)
    labels = []
    for policy in report["policies"]:
        css = f"policy {looks[policy].css}"
        own = [(rate, point) for (name, rate), point in place.items() if name == policy]
        chart.line([point for _, point in own], f"thin {css}")
        for rate, point in own:
            title = f"{policy} at {rate_text(rate)}/s: {three_digits(point[0])} USD, {three_digits(point[1])}"
            chart.dot(point, css, title, 5.5 if rate == near else 2.4)
            if rate == near:
                labels.append((point, policy, css))
    _beside(chart, labels)
    return chart.render("Cost of a thousand answers against " + label)


def _beside(chart: Chart, labels: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Names beside their points, where neither another name nor another point stands."""
    points = [(chart.x(x), chart.y(y)) for (x, y), _, _ in labels]
    taken: list[tuple[float, float, float, float]] = [(x - 6, x + 6, y - 6, y + 6) for x, y in points]
    for (x, y), (_, text, css) in sorted(zip(points, labels, strict=True), key=lambda one: one[0][1]):
        width = 7.4 * len(text)
        places = [
            (x + 9 if right else x - 9 - width, y + 4 + down)
            for down in (0, -12, 12, -24, 24, -36, 36, -48, 48)
            for right in (True, False)
        ]
        boxes = [(left, left + width, at - 11, at + 2) for left, at in places]
        free = [
            place
            for place, box in enumerate(boxes)
            if box[0] > chart.x.start
            and not any(
                box[0] < one[1] and box[1] > one[0] and box[2] < one[3] and box[3] > one[2] for one in taken
            )
        ]
        place = free[0] if free else 0
        taken.append(boxes[place])
        chart.text(*places[place], text, css=f"name {css}")
