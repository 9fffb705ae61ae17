"""An evaluation's curves and figures as drawings; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.compare.tables import three_digits
from benchmarks.evaluate.figures import Curve, Evaluation, Figure
from benchmarks.pages.drawing import Drawing, lanes_px, number, padded, scale

#: CSS class by `of`.
Classes = Mapping[str, str]
#: (light, dark, dash) of the classes c0, c1, ..., for colour-blind readers; what is evaluated has the first.
COLOURS = (
    ("#d1470b", "#ff8f5a", "none"),
    ("#0067a8", "#5ab0f0", "7 3"),
    ("#00805c", "#35cba0", "2 3"),
    ("#a5368f", "#e58fd3", "9 3 2 3"),
    ("#a37500", "#e6b84a", "4 2"),
    ("#5748b5", "#a99cf5", "12 4"),
    ("#5b6470", "#aab3bd", "1 2"),
)
_LOG_RATIO = 30.0
_PART_GAP_PX = 9.0
_LETTER_PX = 7.5


def classes_of(found: Evaluation) -> dict[str, str]:
    """One class for each `of` of figures on the whole page, what is evaluated first; a difference has that of
    the baseline in it. What only curves have comes last."""
    plain = dict.fromkeys(each.of for each in found.figures if not each.is_difference)
    classes = {of: f"c{place % len(COLOURS)}" for place, of in enumerate(plain)}
    for each in found.figures:
        if each.is_difference:
            classes[each.of] = classes.get(each.of.partition(" - ")[2], "c0")
    further = dict.fromkeys(each.of for each in found.curves if each.of not in classes)
    return classes | {of: f"c{place % len(COLOURS)}" for place, of in enumerate(further)}


def curves(found: Sequence[Curve], classes: Classes) -> list[tuple[str, Drawing]]:
    """(title, drawing) of each plot, in the order in which titles first come."""
    titles = dict.fromkeys(each.title for each in found if _points(each))
    return [(title, _plot([each for each in found if each.title == title], classes)) for title in titles]


def _points(curve: Curve) -> list[tuple[float, float]]:
    return [point for point in zip(curve.x, curve.y, strict=True) if all(map(math.isfinite, point))]


def _plot(same: Sequence[Curve], classes: Classes) -> Drawing:
    first, lines = same[0], {curve.of: points for curve in same if (points := _points(curve))}
    xs, ys = ([point[at] for points in lines.values() for point in points] for at in (0, 1))
    width = 430 + _LETTER_PX * max(map(len, lines))
    drawing = Drawing(f"{first.title}: {first.y_name} against {first.x_name}, one line each", width, 340)
    axes = drawing.axes[0]
    if min(xs + ys) >= 0 and max(xs + ys) <= 1:
        scale(axes.xaxis, 0, 1)
        scale(axes.yaxis, 0, 1)
        drawing.target(axes, (0, 0), (1, 1))
    else:
        low, high, log = padded(xs, far_apart=_LOG_RATIO)
        scale(axes.xaxis, *((min(xs), max(xs)) if log else (low, high)), 6, log=log)
        low, high, log = padded(ys, far_apart=_LOG_RATIO)
        from_zero = not log and min(ys) >= 0 and max(ys) > 0
        scale(axes.yaxis, 0 if from_zero else low, high, log=log)
    axes.set_xlabel(first.x_name)
    drawing.title(axes, first.y_name, axis=True)
    for curve in reversed(same):  # what is evaluated comes first and lies on top
        css, points = classes[curve.of], lines.get(curve.of, [])
        if points and not curve.scattered:
            drawing.line(axes, points, css, 2.6 if css == "c0" else 1.8)
        for x, y in points:
            drawing.dot(axes, x, y, css, f"{curve.of}: {number(x)}, {three_digits(y)}")
    drawing.names(axes, [(points[-1], of, classes[of]) for of, points in lines.items()])
    return drawing


def intervals(same: Sequence[Figure], classes: Classes) -> Drawing | None:
    """Figures of one name with their intervals: a block for each part, a lane in it for each `of`. None where
    there is one figure only, which a table shows as well."""
    same = [each for each in same if math.isfinite(each.value)]
    if len(same) < 2:
        return None
    ofs = list(dict.fromkeys(each.of for each in same))
    blocks = {
        part: [each for each in same if each.part == part] for part in dict.fromkeys(e.part for e in same)
    }
    lanes = {
        part: [
            (classes[each.of], each.value, ends(each), f"{each.of}: {figure_text(each)}")
            for each in sorted(block, key=lambda one: ofs.index(one.of))
        ]
        for part, block in blocks.items()
    }
    width = 445 + _LETTER_PX * max(map(len, blocks))
    height = lanes_px(lanes, _PART_GAP_PX) + 52
    drawing = Drawing(f"{same[0].name} with 95 % intervals", width, height)
    axes = drawing.axes[0]
    low, high, log = padded([end for each in same for end in ends(each)], far_apart=_LOG_RATIO)
    scale(axes.xaxis, low, high, 6, log=log)
    axes.set_xlabel(f"{same[0].name} ({same[0].unit})" if same[0].unit else same[0].name)
    drawing.lanes(axes, lanes, _PART_GAP_PX)
    return drawing


def ends(figure: Figure) -> tuple[float, float]:
    """The figure's interval; its value in place of an end that is not known."""
    low, high = (
        end if end is not None and math.isfinite(end) else figure.value for end in (figure.low, figure.high)
    )
    return low, high


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
