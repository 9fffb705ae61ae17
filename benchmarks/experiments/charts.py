"""Figures of experiments: lines, lanes with intervals, stacked shares, labelled points, a grid of cells. Each has the name of
its `file`, and its caption also describes it where it cannot be seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.legend_handler import HandlerPatch
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.transforms import Affine2D

from benchmarks.compare.tables import three_digits
from benchmarks.evaluate.figures import Figure
from benchmarks.evaluate.plots import COLOURS, ends
from benchmarks.experiments.report import Chart
from benchmarks.pages.drawing import ACCENT, INK, MARK_PX, Drawing, Point, lanes_px, padded, scale, shape_of

#: (what it is of, value, low end, high end).
Lane = tuple[str, float, float, float]
_LETTER_PX = 7.2
_GAP_PX = 10.0
_WIDTH = 760.0


def lines(
    file: str,
    caption: str,
    x_name: str,
    y_name: str,
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    *,
    log_x: bool = False,
    log_y: bool = False,
    y_range: tuple[float, float] | None = None,
) -> Chart:
    """Series of points joined by lines, in panels (title: series) with the same axes."""
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    points = [point for series in panels.values() for found in series.values() for point in found]
    drawing = Drawing(caption, _WIDTH if len(panels) > 1 else 560, 330, len(panels))
    xs, ys = zip(*points, strict=True)
    y_low, y_high, _ = _ends(ys, log=log_y)
    if not log_y and min(ys) >= 0:
        y_low = 0.0
    for place, (axes, (title, series)) in enumerate(zip(drawing.axes, panels.items(), strict=True)):
        scale(axes.xaxis, *_ends(xs, log=log_x)[:2], 6 if len(panels) < 3 else 4, log=log_x)
        scale(axes.yaxis, *(y_range or (y_low, y_high)), log=log_y)
        axes.set_xlabel(x_name)
        if title:
            drawing.title(axes, title)
        if not place:
            if title:
                axes.set_ylabel(y_name)
            else:
                drawing.title(axes, y_name, axis=True)
        for name, found in series.items():
            ordered = sorted(found)
            drawing.line(axes, ordered, _css(names, name), 1.8)
            for x, y in ordered:
                drawing.dot(axes, x, y, _css(names, name), f"{name}: {three_digits(x)}, {three_digits(y)}")
    _legend(drawing, names)
    return Chart(file, caption, drawing)


def lanes(
    file: str,
    caption: str,
    x_name: str,
    rows: Mapping[str, Sequence[Lane]],
    *,
    zero: bool = False,
    log: bool = False,
) -> Chart:
    """Values with intervals: a row of lanes for each name. With `zero` the axis holds 0."""
    names = list(dict.fromkeys(of for found in rows.values() for of, *_ in found))
    drawn = {
        row: [
            (
                _css(names, of),
                value,
                (low, high),
                f"{row}, {of}: {three_digits(value)} [{three_digits(low)}, {three_digits(high)}]",
            )
            for of, value, low, high in found
        ]
        for row, found in rows.items()
    }
    drawing = Drawing(caption, 480 + _LETTER_PX * max(map(len, rows)), lanes_px(drawn, _GAP_PX) + 90)
    axes = drawing.axes[0]
    values = [each for found in rows.values() for _, *of_lane in found for each in of_lane]
    low, high, logarithmic = _ends([*values, 0.0] if zero else values, log=log)
    scale(axes.xaxis, low, high, 6, log=logarithmic)
    axes.set_xlabel(x_name)
    drawing.lanes(axes, drawn, _GAP_PX)
    _legend(drawing, names, shapes=True)
    return Chart(file, caption, drawing)


def of_figures(
    file: str, caption: str, x_name: str, rows: Mapping[str, Sequence[tuple[str, Figure]]]
) -> Chart:
    """`lanes` of measured figures, by their names, with their intervals."""
    return lanes(
        file,
        f"{caption}, with 95 % intervals",
        x_name,
        {row: [(name, each.value, *ends(each)) for name, each in found] for row, found in rows.items()},
    )


def stacked(file: str, caption: str, x_name: str, rows: Mapping[str, Mapping[str, float]]) -> Chart:
    """Shares (0 to 1) of each row side by side, in per cent."""
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    height = 34.0 * len(rows)
    drawing = Drawing(caption, 520 + _LETTER_PX * max(map(len, rows)), height + 96)
    axes = drawing.axes[0]
    scale(axes.xaxis, 0, 100, 5)
    axes.set_ylim(height, 0)
    axes.yaxis.set_ticks([])
    axes.set_xlabel(x_name)
    for place, (row, found) in enumerate(rows.items()):
        at = 34.0 * place + 17
        drawing.row_name(axes, at, row)
        left = 0.0
        for name, share in found.items():
            percent = 100 * max(0.0, share)
            bar = axes.barh(at, percent, 22, left=left, color=ACCENT, alpha=0.75, linewidth=0)[0]
            drawing.tag(bar, _css(names, name), f"{row}, {name}: {percent:.1f} %")
            if percent >= 7:
                drawing.text(axes, left + percent / 2, at, f"{percent:.0f} %", fontsize=12)
            left += percent
    _legend(drawing, names, square=True)
    return Chart(file, caption, drawing)


def points(
    file: str,
    caption: str,
    x_name: str,
    y_name: str,
    series: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    named: Iterable[str] = (),
    log_y: bool = False,
) -> Chart:
    """Points (x, y, name); those whose names are in `named` are written beside them. The x axis is logarithmic if it can be."""
    names = list(series)
    wanted = set(named)
    found = [(*point, _css(names, name)) for name, each in series.items() for point in each]
    drawing = Drawing(
        caption, 560 + (_LETTER_PX * max(map(len, wanted)) if wanted else 0), 400 + (60 if wanted else 0)
    )
    axes = drawing.axes[0]
    xs, ys, _, _ = zip(*found, strict=True)
    for axis, values, wanted_log in ((axes.xaxis, xs, True), (axes.yaxis, ys, log_y)):
        low, high, log = _ends(values, log=wanted_log)
        scale(axis, low, high, 6, log=log)
    axes.set_xlabel(x_name)
    drawing.title(axes, y_name, axis=True)
    for x, y, text, css in found:
        drawing.mark(axes, x, y, css, f"{text}: {three_digits(x)}, {three_digits(y)}")
    drawing.names(axes, [((x, y), text, css) for x, y, text, css in found if text in wanted])
    if len(names) > 1:
        _legend(drawing, names, shapes=True)
    return Chart(file, caption, drawing)


def grid(
    file: str, caption: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], str]
) -> Chart:
    """A table with a filled cell where something is; the text of a cell is written into it."""
    texts = list(dict.fromkeys(cells.values()))
    drawing = Drawing(caption, 90 * len(columns) + _LETTER_PX * max(map(len, rows)) + 60, 30 * len(rows) + 96)
    axes = drawing.axes[0]
    axes.grid(visible=False)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.xaxis.set_ticks([place + 0.5 for place in range(len(columns))], columns)
    axes.yaxis.set_ticks([])
    axes.tick_params(axis="x", top=False, labeltop=True, labelbottom=False)
    for y, row in enumerate(rows):
        drawing.row_name(axes, y + 0.5, row)
        for x, column in enumerate(columns):
            text = cells.get((row, column))
            if text is not None:
                bar = axes.barh(y + 0.5, 0.9, 0.8, left=x + 0.05, color=ACCENT, alpha=0.75, linewidth=0)[0]
                drawing.tag(bar, _css(texts, text), f"{row} on {column}: {text}")
            drawing.text(axes, x + 0.5, y + 0.5, fill(text or "no", 18), fontsize=9)
    return Chart(file, caption, drawing)


def _ends(values: Sequence[float], *, log: bool) -> tuple[float, float, bool]:
    """The ends of an axis; by the logarithm only where that is asked for and possible."""
    return padded(values, far_apart=0.0 if log else math.inf)


def _css(names: Sequence[str], name: str) -> str:
    return f"c{names.index(name) % len(COLOURS)}"


def _legend(drawing: Drawing, names: Sequence[str], *, square: bool = False, shapes: bool = False) -> None:
    """What colours and shapes stand for, above the plots."""
    if names == [""]:
        return
    short = square or shapes
    width = 9 if square else 2.4
    handles = [
        PathPatch(shape_of(_css(names, name)), color=ACCENT, linewidth=0)
        if shapes
        else Line2D([], [], color=ACCENT, linewidth=width, solid_capstyle="butt")
        for name in names
    ]
    letters = int((drawing.width - 20) / _LETTER_PX)
    columns = max(1, min(len(names), letters // (max(map(len, names)) + 7)))
    legend = drawing.figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handlelength=1.1 if short else 2.2,
        fontsize=12,
        labelcolor=INK,
        handler_map={PathPatch: HandlerPatch(_shape)},
    )
    for place, handle in enumerate(legend.legend_handles):
        if handle is not None:
            drawing.tag(handle, f"c{place % len(COLOURS)}" if short else f"line c{place % len(COLOURS)}")


def _shape(*, orig_handle: PathPatch, width: float, height: float, **_: Any) -> PathPatch:
    """A lane's shape in the middle of its place in the legend."""
    return PathPatch(
        orig_handle.get_path().transformed(Affine2D().scale(MARK_PX).translate(width / 2, height / 2))
    )
