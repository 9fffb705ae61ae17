"""Axes, lines and bars as SVG text. Colours come from the page's style sheet, so that they follow light and dark.

An element of a policy carries its classes (`policy p3`), by which the page colours, dims and hides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values in [`low`, `high`] to pixels in [`start`, `end`]; values outside are held at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values on it, some `about` of them."""
        return log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)


def padded(values: Sequence[float], start: float, end: float) -> Scale:
    """A linear scale with some air around the values."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    step = round_step((high - low + 2 * air) / 20)
    return Scale((low - air) // step * step, -(-(high + air) // step) * step, start, end)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high]."""
    step = round_step((high - low) / about)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def log_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """1, 2, 5 times powers of ten in [low, high]; powers of ten only, or fewer of them, where these are too
    many."""
    found: list[float] = []
    for factors, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [
            factor * 10.0**exponent
            for exponent in exponents
            if exponent % every == 0
            for factor in factors
            if low * (1 - 1e-9) <= factor * 10.0**exponent <= high * (1 + 1e-9)
        ]
        if len(found) <= about + 2:
            break
    return found


def number(value: float) -> str:
    """A tick's label: as short as it can be."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def px(value: float) -> str:
    """A coordinate with one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


@dataclass(slots=True)
class Chart:
    """One pair of axes in a picture of `width` x `height` pixels; `x` and `y` are its scales."""

    width: float
    height: float
    x: Scale
    y: Scale
    parts: list[str] = field(default_factory=list)

    def axes(self, x_label: str, y_label: str, x_ticks: Iterable[float], y_ticks: Iterable[float]) -> None:
        """Grid, numbers and the names of both axes."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        for value in y_ticks:
            at = px(self.y(value))
            self.parts.append(f'<path class="grid" d="M{px(left)} {at}H{px(right)}"/>')
            self.text(left - 6, self.y(value) + 4, number(value), anchor="end")
        for value in x_ticks:
            at = px(self.x(value))
            self.parts.append(f'<path class="grid" d="M{at} {px(bottom)}V{px(top)}"/>')
            self.text(self.x(value), bottom + 16, number(value), anchor="middle")
        self.parts.append(f'<path class="axis" d="M{px(left)} {px(bottom)}H{px(right)}"/>')
        if x_label:
            self.text((left + right) / 2, bottom + 33, x_label, anchor="middle", css="soft")
        if y_label:
            self.text(left - 6, top - 9, y_label, css="soft")

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", css: str = "") -> None:
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        name = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{px(x)}" y="{px(y)}"{where}{name}>{escape(text)}</text>')

    def line(self, points: Sequence[Point], css: str) -> None:
        """A line through values."""
        if points:
            self.parts.append(f'<path class="line {css}" d="{self._path(points)}"/>')

    def band(self, points: Sequence[tuple[float, float, float]], css: str) -> None:
        """The area between (x, low, high)."""
        if len(points) > 1:
            there = [(x, high) for x, _, high in points]
            back = [(x, low) for x, low, _ in reversed(points)]
            self.parts.append(f'<path class="band {css}" d="{self._path([*there, *back])}Z"/>')

    def dot(self, point: Point, css: str, title: str, radius: float = 3.2) -> None:
        """A point that tells `title` under the pointer."""
        self.parts.append(
            f'<circle class="dot {css}" cx="{px(self.x(point[0]))}" cy="{px(self.y(point[1]))}" r="{px(radius)}">'
            f"<title>{escape(title)}</title></circle>"
        )

    def end_labels(self, labels: Sequence[tuple[float, str, str]], gap: float = 14.0) -> None:
        """Names (y value, text, css) right of the axes, beside the ends of their lines and clear of each
        other."""
        ordered = sorted(((self.y(value), text, css) for value, text, css in labels), key=lambda one: one[0])
        x = self.x.end + 8
        for (at, text, css), y in zip(
            ordered, spread([at for at, _, _ in ordered], gap, self.y.end, self.y.start + gap), strict=True
        ):
            self.parts.append(
                f'<path class="leader {css}" d="M{px(self.x.end + 1)} {px(at)}L{px(x + 4)} {px(y)}"/>'
            )
            self.text(x + 7, y + 4, text, css=f"name {css}")

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{px(self.x(x))} {px(self.y(y))}" for x, y in points)

    def render(self, label: str) -> str:
        """The `<svg>` element; `label` says in words what it shows."""
        return svg(self.width, self.height, label, self.parts)


def spread(places: Sequence[float], gap: float, least: float, most: float) -> list[float]:
    """Rising pixel places moved apart to `gap` at least, within [`least`, `most`] where there is room, and
    else near to where they were."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else max(place, least))
    # A pile that was pushed down is centred on where it belongs.
    start = 0
    for index in range(1, len(found) + 1):
        if index == len(found) or found[index] - found[index - 1] > gap + 1e-6:
            shift = sum(found[start:index]) - sum(places[start:index])
            room = found[start] - (found[start - 1] + gap if start else least)
            shift = max(0.0, min(shift / (index - start), room))
            found[start:index] = [place - shift for place in found[start:index]]
            start = index
    for index in reversed(range(len(found))):
        found[index] = min(found[index], most)
        most = found[index] - gap
    return found


def svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A picture that scales with its column."""
    return (
        f'<svg viewBox="0 0 {px(width)} {px(height)}" role="img" aria-label="{escape(label)}"'
        f' style="max-width:{px(width * 1.07)}px">{"".join(parts)}</svg>'
    )
