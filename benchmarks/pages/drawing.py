"""Figures of the reports: drawn by matplotlib, put inline into a page as SVG.

A figure takes its colours from the page, so that it follows light and dark. Artists are drawn in INK, SOFT or ACCENT;
the SVG has CSS variables in their place, and ACCENT is the colour of the classes that `tag` gives the artist. Equal
figures give equal bytes: no dates, no ids, no fonts of the machine.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D, ScaledTranslation

#: Placeholders that no one else draws with, and what the page has in their place.
INK, SOFT, ACCENT = "#010203", "#010204", "#010205"
_COLOURS = {INK: "currentColor", SOFT: "var(--soft)", ACCENT: "var(--c)"}
#: The font is matplotlib's own, by which it places labels; the page's style has the one that they are written in.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 1,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.bottom": False,
    "xtick.minor.bottom": False,
    "ytick.left": False,
    "ytick.minor.left": False,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
}
_FONT: Mapping[str, Any] = {"fontsize": 12, "fontfamily": "DejaVu Sans", "parse_math": False}
_LEADER = {"arrowstyle": "-", "relpos": (0, 0.5), "color": ACCENT, "alpha": 0.5, "shrinkA": 0, "shrinkB": 3}
#: From this ratio of its ends on a range is shown by its logarithm.
LOG_RATIO = 20.0
Point = tuple[float, float]
#: CSS, value, ends of its interval, title.
Lane = tuple[str, float, Point, str]
_LANE_PX = 15.0
#: matplotlib's names of the shapes of the classes c0, c1, ..., for whoever does not see their colours.
_SHAPES = "osD^vPX"
MARK_PX = 9.0
_NAME_PX = 14.0
#: About what the labels of both axes take of a drawing's height.
_MARGIN_PX = 70.0


@dataclass(slots=True)
class Drawing:
    """A figure of `width` x `height` pixels with `columns` plots side by side; `label` describes it in words."""

    label: str
    width: float
    height: float
    columns: int = 1
    figure: Figure = field(init=False)
    axes: list[Axes] = field(init=False)
    _tags: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        with rc_context(_STYLE):
            self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
            self.axes = list(self.figure.subplots(1, self.columns, squeeze=False)[0])

    def tag(self, artist: Artist, css: str, title: str = "") -> None:
        """Give an artist CSS classes, and a title that the page shows under the pointer."""
        artist.set_gid(f"tag{len(self._tags)}")
        self._tags.append(f'class="{escape(css)}">' + (f"<title>{escape(title)}</title>" if title else ""))

    def title(self, axes: Axes, text: str, *, axis: bool = False) -> None:
        """A title above a plot; of its vertical `axis`, paler and at the left."""
        if axis:
            axes.set_title(text, loc="left", color=SOFT, fontweight="normal", **_FONT)
        else:
            axes.set_title(text, color=INK, fontweight="bold", **_FONT)

    def row_name(self, axes: Axes, y: float, text: str, css: str = "") -> None:
        """A name left of a plot, at the height `y` of its vertical axis."""
        name = axes.annotate(
            text,
            (0, y),
            (-8, 0),
            axes.get_yaxis_transform(),
            "offset points",
            horizontalalignment="right",
            verticalalignment="center",
            color=INK,
            annotation_clip=False,
            **_FONT,
        )
        self.tag(name, css)

    def line(self, axes: Axes, points: Sequence[Point], css: str, width: float = 2.2) -> None:
        """A line; the page's style dashes it."""
        (line,) = axes.plot(*zip(*points, strict=True), color=ACCENT, linewidth=width)
        self.tag(line, f"line {css}")

    def target(self, axes: Axes, start: Point, end: Point, title: str = "") -> None:
        """A dotted line of no class."""
        (line,) = axes.plot(
            *zip(start, end, strict=True), color=INK, alpha=0.6, linewidth=1, linestyle=(0, (3, 4))
        )
        self.tag(line, "target", title)

    def band(self, axes: Axes, points: Sequence[tuple[float, float, float]], css: str) -> None:
        """The area between two lines: (x, low, high)."""
        x, low, high = zip(*points, strict=True)
        band = axes.fill_between(x, low, high, color=ACCENT, alpha=0.1, linewidth=0, edgecolor="none")
        self.tag(band, css)

    def dot(self, axes: Axes, x: float, y: float, css: str, title: str, radius: float = 3.2) -> None:
        """A point of `radius` pixels: a line without length, whose round ends are a circle."""
        (dot,) = axes.plot(
            [x, x], [y, y], color=ACCENT, linewidth=2 * radius, solid_capstyle="round", zorder=3
        )
        self.tag(dot, f"dot {css}", title)

    def mark(self, axes: Axes, x: float, y: float, css: str, title: str) -> None:
        """A point in the shape of its class, for figures without lines."""
        # The stubs know no transform that is not affine.
        place = ScaledTranslation(x, y, axes.transData)  # type: ignore[arg-type]
        to_pixels = Affine2D().scale(MARK_PX) + place
        mark = PathPatch(shape_of(css), color=ACCENT, linewidth=0, zorder=3, transform=to_pixels)
        axes.add_patch(mark)
        self.tag(mark, f"dot {css}", title)

    def interval(
        self, axes: Axes, y: float, mean: float, ends: tuple[float, float], css: str, title: str
    ) -> None:
        """A point with the two ends of its interval, lying at the height `y`."""
        (line,) = axes.plot(ends, (y, y), color=ACCENT, linewidth=2.4, solid_capstyle="butt")
        self.tag(line, f"whisker {css}")
        self.mark(axes, mean, y, css, title)

    def lanes(self, axes: Axes, rows: Mapping[str, Sequence[Lane]], gap_px: float) -> None:
        """A row of intervals for each name, below each other, and a line at 0 if the axis holds it. Call it once the
        limits of the horizontal axis are set; `lanes_px` is the height of all rows."""
        height = lanes_px(rows, gap_px)
        axes.set_ylim(height, 0)
        axes.yaxis.set_ticks([])
        low, high = axes.get_xlim()
        if low < 0 < high:
            self.target(axes, (0, 0), (0, height))
        top = gap_px / 2
        for row, found in rows.items():
            self.row_name(axes, top + _LANE_PX * len(found) / 2, row)
            for at, (css, value, ends, title) in enumerate(found):
                self.interval(axes, top + _LANE_PX * (at + 0.5), value, ends, css, title)
            top += _LANE_PX * len(found) + gap_px

    def text(self, axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
        axes.text(x, y, text, color=INK, horizontalalignment="center", verticalalignment="center", **style)

    def names(self, axes: Axes, labels: Sequence[tuple[Point, str, str]]) -> None:
        """Names (point, text, CSS) right of their points, clear of each other, each with a line to its point. Call it
        once the limits of the axes are set."""
        if not labels:
            return
        height_px = self.height - _MARGIN_PX
        places = (axes.transData - axes.transAxes).transform([point for point, _, _ in labels])
        placed = [(y * height_px, x, *label[1:]) for (x, y), label in zip(places, labels, strict=True)]
        placed.sort(key=lambda one: one[0])
        heights = spread([at for at, *_ in placed], _NAME_PX, height_px)
        for (at, x, text, css), moved in zip(placed, heights, strict=True):
            name = axes.annotate(
                text,
                (x, at / height_px),
                (x + 16 / self.width, moved / height_px),
                xycoords="axes fraction",
                arrowprops=_LEADER,
                annotation_clip=False,
                color=ACCENT,
                verticalalignment="center",
                fontweight="bold",
                **_FONT,
            )
            self.tag(name, f"name {css}")
            if name.arrow_patch is not None:
                self.tag(name.arrow_patch, css)

    def svg(self) -> str:
        """The `<svg>` element, which scales with its column."""
        with rc_context(_STYLE), io.StringIO() as file:
            FigureCanvasSVG(self.figure).print_svg(file, metadata=_NO_METADATA)  # type: ignore[no-untyped-call]
            drawn = file.getvalue()
        body = drawn[drawn.index(">", drawn.index("<svg ")) + 1 : drawn.rindex("</svg>")]
        for pattern, replacement in _REPLACED:
            body = pattern.sub(replacement, body)
        body = _COORDINATES.sub(lambda found: _NUMBER.sub(_rounded, " ".join(found[0].split())), body)
        body = _GROUP.sub(lambda found: f"<g {self._tags[int(found[1])]}" if found[1] else "<g>", body)
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.label)}"'
            f' style="max-width:{1.07 * self.width:g}px">{body}</svg>'
        )


_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_REPLACED = tuple(
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in (
        (
            r'<!--.*?-->|<defs>.*?</defs>|<g id="[^"]*"/>',
            "",
        ),  # with the style that would hold for the whole page
        (r' clip-path="[^"]*"| transform="rotate\(-0 [^"]*"', ""),
        (rf"font-size: {_STYLE['font.size']}px; |font-family: '{_STYLE['font.family']}'; ", ""),
        *((colour, variable) for colour, variable in _COLOURS.items()),
        (r"\n\s*(?=<)", ""),
    )
)
_COORDINATES = re.compile(r'(?<= )(?:d|x|y|transform)="[^"]*"')
_NUMBER = re.compile(r"\d+\.\d+")
_GROUP = re.compile(r'<g id="(?:tag(\d+)|[^"]*)">')


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def spread(places: Sequence[float], gap: float, most: float) -> list[float]:
    """Rising places moved apart to `gap` at least, as little as possible (in the mean square), and within [0, `most`]
    where there is room."""
    from scipy.optimize import isotonic_regression  # half a second of import

    # Less `gap` for each place before it, places need only rise.
    before = gap * np.arange(len(places))
    rising = isotonic_regression(places - before).x
    room = max(0.0, most - gap * (len(places) - 1))
    moved: list[float] = (rising.clip(0.0, room) + before).tolist()
    return moved


def shape_of(css: str) -> Path:
    """The shape of a class c0, c1, ..., about 1 wide around 0; a circle for other classes."""
    place = int(css[1:]) if css[1:].isdecimal() else 0
    style = MarkerStyle(_SHAPES[place % len(_SHAPES)])
    return style.get_path().transformed(style.get_transform())


def lanes_px(rows: Mapping[str, Sequence[Lane]], gap_px: float) -> float:
    """The height of all rows of `Drawing.lanes`, with a gap around each."""
    return sum(_LANE_PX * len(found) + gap_px for found in rows.values())


def number(value: float) -> str:
    """A tick's label: as short as it can be."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def scale(axis: Any, low: float, high: float, ticks: int = 5, *, log: bool = False) -> None:
    """Limits and round ticks of an axis, some `ticks` of them."""
    axes, name = axis.axes, axis.axis_name
    axes.set(**{f"{name}scale": "log" if log else "linear", f"{name}lim": (low, high)})
    if log:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=ticks + 2))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def padded(values: Sequence[float], *, far_apart: float = LOG_RATIO) -> tuple[float, float, bool]:
    """Low end, high end and whether by the logarithm: the range of `values` with some air around it."""
    low, high = min(values), max(values)
    if low > 0 and high > far_apart * low:
        return low / 1.3, high * 1.3, True
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - air, high + air, False
