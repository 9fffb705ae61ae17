"""An evaluation's curves and figures as SVG elements; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.compare.svg import Chart, Point, Scale, number, padded, px, svg
from benchmarks.compare.tables import three_digits
from benchmarks.evaluate.figures import Curve, Evaluation, Figure

#: CSS class by `of`.
Looks = Mapping[str, str]
#: Classes that the style sheet has: c0 to c6.
COLOURS = 7

#: An axis is logarithmic from this ratio of its ends on.
_LOG_RATIO = 30.0
_LANE_PX = 15.0
_PART_GAP_PX = 9.0
_LETTER_PX = 7.2


def looks_of(found: Evaluation) -> dict[str, str]:
    """One class for each `of` of figures on the whole page, what is evaluated first; a difference has that of
    the baseline in it. What only curves have comes last."""
    plain = dict.fromkeys(each.of for each in found.figures if not each.is_difference)
    looks = {of: f"c{place % COLOURS}" for place, of in enumerate(plain)}
    for each in found.figures:
        if each.is_difference:
            looks[each.of] = looks.get(each.of.partition(" - ")[2], "c0")
    further = dict.fromkeys(each.of for each in found.curves if each.of not in looks)
    return looks | {of: f"c{place % COLOURS}" for place, of in enumerate(further)}


def curves(found: Sequence[Curve], looks: Looks) -> list[tuple[str, str]]:
    """(title, SVG) of each plot, in the order in which titles first come."""
    titles = list(dict.fromkeys(each.title for each in found))
    plots = ((title, [each for each in found if each.title == title]) for title in titles)
    return [(title, _plot(title, same, looks)) for title, same in plots if any(map(_points, same))]


def _points(curve: Curve) -> list[Point]:
    return [point for point in zip(curve.x, curve.y, strict=True) if all(map(math.isfinite, point))]


def _plot(title: str, same: Sequence[Curve], looks: Looks) -> str:
    points = [point for curve in same for point in _points(curve)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    shares = min(xs + ys) >= 0 and max(xs + ys) <= 1
    if shares:
        x, y = Scale(0, 1, 44, 400), Scale(0, 1, 300, 26)
    else:
        x, y = _scale(xs, 44, 400), _scale(ys, 300, 26, from_zero=True)
    width = 430 + _LETTER_PX * max(len(curve.of) for curve in same)
    chart = Chart(width, 340, x, y)
    chart.axes(same[0].x_name, same[0].y_name, x.ticks(6), y.ticks(5))
    if shares:
        chart.parts.append(f'<path class="target" d="M{px(x(0))} {px(y(0))}L{px(x(1))} {px(y(1))}"/>')
    for curve in reversed(same):  # what is evaluated comes first and lies on top
        line, css = _points(curve), looks[curve.of]
        if not curve.scattered:
            chart.line(line, css)
        for point in line:
            chart.dot(point, css, f"{curve.of}: {number(point[0])}, {three_digits(point[1])}")
    ends = [(line[-1][1], curve.of, looks[curve.of]) for curve in same if (line := _points(curve))]
    chart.end_labels(ends)
    return chart.render(f"{title}: {same[0].y_name} against {same[0].x_name}, one line each")


def _scale(values: Sequence[float], start: float, end: float, *, from_zero: bool = False) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOG_RATIO:
        return Scale(low, high, start, end, log=True)
    if from_zero and low >= 0 and high > 0:
        return Scale(0, 1.06 * high, start, end)
    return padded(values, start, end)


def intervals(same: Sequence[Figure], looks: Looks) -> str | None:
    """Figures of one name with their intervals: a block for each part, a lane in it for each `of`. None where
    there is one figure only, which a table tells as well."""
    same = [each for each in same if math.isfinite(each.value)]
    if len(same) < 2:
        return None
    parts = list(dict.fromkeys(each.part for each in same))
    ofs = list(dict.fromkeys(each.of for each in same))
    values = [end for each in same for end in _ends(each)]
    left = 14 + _LETTER_PX * max(map(len, parts))
    blocks = [[each for of in ofs for each in same if (each.part, each.of) == (part, of)] for part in parts]
    bottom = 12 + sum(_LANE_PX * len(block) + _PART_GAP_PX for block in blocks)
    x = padded(values, left, left + 430)
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOG_RATIO:
        x = Scale(0.9 * low, 1.1 * high, left, left + 430, log=True)
    chart = Chart(left + 445, bottom + 40, x, Scale(0, 1, bottom, 12))
    unit = same[0].unit
    chart.axes(f"{same[0].name} ({unit})" if unit else same[0].name, "", x.ticks(6), ())
    if x.low < 0 < x.high:
        chart.parts.append(f'<path class="target" d="M{px(x(0))} 12V{px(bottom)}"/>')
    top = 12 + _PART_GAP_PX / 2
    for part, block in zip(parts, blocks, strict=True):
        chart.text(left - 8, top + _LANE_PX * len(block) / 2 + 4, part, anchor="end")
        for lane, each in enumerate(block):
            chart.parts += _whisker(each, x, top + _LANE_PX * (lane + 0.5), looks[each.of])
        top += _LANE_PX * len(block) + _PART_GAP_PX
    return svg(chart.width, chart.height, f"{same[0].name} with 95 % intervals", chart.parts)


def _ends(figure: Figure) -> list[float]:
    ends = (figure.value, figure.low, figure.high)
    return [end for end in ends if end is not None and math.isfinite(end)]


def _whisker(figure: Figure, x: Scale, y: float, css: str) -> Iterable[str]:
    low, high = (
        end if end is not None and math.isfinite(end) else figure.value for end in (figure.low, figure.high)
    )
    told = f"<title>{escape(f'{figure.of}: {figure_text(figure)}')}</title>"
    yield f'<path class="whisker {css}" d="M{px(x(low))} {px(y)}H{px(x(high))}"/>'
    yield f'<circle class="dot {css}" cx="{px(x(figure.value))}" cy="{px(y)}" r="3.6">{told}</circle>'


def figure_text(figure: Figure) -> str:
    """`value unit [low, high]`, without an interval where there is none."""
    return " ".join(filter(None, (value_text(figure.value), figure.unit, interval_text(figure))))


def interval_text(figure: Figure) -> str:
    """`[low, high]`; empty where there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return f"[{value_text(figure.low)}, {value_text(figure.high)}]"


def value_text(value: float) -> str:
    """Three digits that count; a dash for what is no number."""
    return three_digits(value) if math.isfinite(value) else "-"
