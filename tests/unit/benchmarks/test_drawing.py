"""Drawings: they take their colours from the page, and equal ones are equal bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.axes import Axes

from benchmarks.pages.drawing import Drawing, number, padded, scale, spread

from .parsed import Parsed, words


def drawn() -> Drawing:
    drawing = Drawing('a <label> with "quotes"', 540, 340)
    axes = drawing.axes[0]
    scale(axes.xaxis, 0, 10)
    scale(axes.yaxis, 0, 4000)
    axes.set_xlabel("requests/s & more")
    drawing.title(axes, "per cent", axis=True)
    drawing.line(axes, [(0, 100), (10, 3000)], "policy p1")
    drawing.band(axes, [(0, 50, 150), (10, 2000, 4000)], "policy p1")
    drawing.dot(axes, 10, 3000, "policy p1", "<$x$> at 10")
    drawing.names(axes, [((10, 3000), "<$slo$>", "p1"), ((10, 2990), "latency", "p2")])
    drawing.row_name(axes, 2000, "a row")
    drawing.target(axes, (0, 1), (10, 1))
    return drawing


def test_equal_drawings_are_equal_bytes_that_stand_alone() -> None:
    svg = drawn().svg()
    assert svg == drawn().svg()
    parsed = Parsed(svg)
    assert (parsed.open, parsed.outside, parsed.ids) == ([], [], [])
    for foreign in ("url(", "#0", "DejaVu", "<defs", "<style", "<!--"):
        assert foreign not in svg
    assert 'role="img" aria-label="a &lt;label&gt; with &quot;quotes&quot;"' in svg


def test_artists_have_the_classes_and_colours_of_the_page() -> None:
    svg = drawn().svg()
    for css in ("line policy p1", "dot policy p1", "policy p1", "name p1", "name p2", "target"):
        assert f'<g class="{css}">' in svg
    for colour in ("stroke: var(--c)", "fill: var(--c)", "fill: var(--soft)", "stroke: currentColor"):
        assert colour in svg
    assert "<title>&lt;$x$&gt; at 10</title>" in svg


def test_texts_are_written_as_they_are() -> None:
    text = words(drawn().svg())
    for expected in ("<$slo$>", "latency", "a row", "requests/s & more", "per cent", "4,000"):
        assert expected in text


def ticks(low: float, high: float, *, log: bool = False) -> list[float]:
    axes: Axes = Drawing("ticks", 300, 200).axes[0]
    scale(axes.xaxis, low, high, log=log)
    return [float(tick) for tick in axes.get_xticks() if low <= tick <= high]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0.31, 0.52, [0.35, 0.4, 0.45, 0.5]), (-3, 4, [-2, 0, 2, 4])],
)
def test_linear_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.09, 2.1, [0.1, 0.2, 0.5, 1, 2]), (0.01, 500, [0.01, 0.1, 1, 10, 100])],
)
def test_log_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, log=True) == pytest.approx(expected)


@pytest.mark.parametrize(("value", "text"), [(1000, "1,000"), (0.5, "0.5"), (0.12345, "0.1235"), (12, "12")])
def test_tick_labels(value: float, text: str) -> None:
    assert number(value) == text


def test_ranges_have_air_and_are_logarithmic_where_values_are_far_apart() -> None:
    assert padded([1.0, 2.0]) == (pytest.approx(0.94), pytest.approx(2.06), False)
    assert padded([1.0, 100.0]) == (pytest.approx(1 / 1.3), 130.0, True)
    assert padded([0.0, 100.0])[2] is False
    assert padded([5.0])[0] < 5 < padded([5.0])[1]


def test_names_are_kept_apart() -> None:
    placed = spread([10.0, 11.0, 12.0, 80.0], 14.0, 300.0)
    assert all(later - earlier >= 14 - 1e-9 for earlier, later in pairwise(placed))
    assert placed[3] == 80.0
    assert placed[0] >= 0
    assert spread([299.0, 300.0, 300.0], 14.0, 300.0) == pytest.approx([272.0, 286.0, 300.0])
    assert spread([], 14.0, 300.0) == []
