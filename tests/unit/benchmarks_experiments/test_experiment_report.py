"""The folder of an experiment: escaped, complete, and figures that stand alone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from benchmarks.evaluate.plots import COLOURS
from benchmarks.experiments import charts
from benchmarks.experiments.report import Chart, Report, Results, Section, header, shown, write
from benchmarks.pages.standalone import standalone
from tests.unit.benchmarks.parsed import assert_stands_alone, words

LINES = {"": {"first <a>": [(1.0, 2.0), (10.0, 4.0)], "second": [(1.0, 1.0), (10.0, 3.0)]}}
CHARTS = (
    charts.lines("lines", "Lines", "load <x>", "seconds", LINES, log_x=True),
    charts.lines("panels", "Panels", "load", "seconds", {"p": LINES[""], "q": LINES[""]}, y_range=(0, 5)),
    charts.lanes(
        "lanes", "Lanes", "TTFT (s)", {"row": [("first", 2.0, 1.0, 3.0), ("second", -1.0, -2.0, 0.0)]}
    ),
    charts.stacked("stacked", "Stacked", "share (%)", {"TTFT": {"a": 0.25, "b": 0.75}}),
    charts.points("points", "Points", "USD", "tokens", {"k": [(1, 2, "one"), (2, 3, "two")]}, named=["one"]),
    charts.grid("grid", "Grid", ["fp8"], ["a100", "v100"], {("fp8", "a100"): "native"}),
)
TWO_SERIES = charts.points("two", "Two", "USD", "tokens", {"k": [(1, 2, "one")], "l": [(2, 3, "two")]})


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report's folder."""
    table = Results("A <table>", ("name", "time (s)"), [("a|b", 0.12345), ("none", None), ("many", 12345)])
    section = Section("First & only", ["A <sentence>."], [table], CHARTS)
    folder = tmp_path_factory.mktemp("report") / "out"
    page = write(folder, Report("test", "What <was> seen", header(7, None), [section]))
    assert page == folder / "index.html"
    return folder


def test_everything_is_written(out: Path) -> None:
    figures = sorted(path.stem for path in (out / "figures").glob("*.svg"))
    assert figures == sorted(each.name for each in CHARTS)
    result = orjson.loads((out / "results.json").read_bytes())
    assert (result["experiment"], result["seed"]) == ("test", 7)
    assert result["command"].startswith("headway")
    assert result["commit"]
    (section,) = result["sections"]
    assert section["tables"][0]["rows"] == [["a|b", 0.12345], ["none", None], ["many", 12345]]
    assert section["figures"][0] == {"file": "figures/lines.svg", "caption": "Lines"}


def test_the_page_is_escaped_and_stands_alone(out: Path) -> None:
    page = (out / "index.html").read_text(encoding="utf-8")
    assert_stands_alone(page)
    assert "<sentence>" not in page
    text = words(page)
    expected = ("What <was> seen", "First & only", "A <sentence>.", "a|b", "0.123", "12,345", "first <a>")
    assert [each for each in expected if each not in text] == []


def test_tables_are_markdown(out: Path) -> None:
    lines = (out / "tables.md").read_text(encoding="utf-8").splitlines()
    assert "| name | time (s) |" in lines
    assert "| a/b | 0.123 |" in lines
    assert "| none | - |" in lines
    assert "- seed: `7`" in lines


@pytest.mark.parametrize("chart", CHARTS, ids=lambda each: each.name)
def test_a_figure_is_a_file_of_its_own(chart: Chart) -> None:
    text = standalone(chart.drawing.svg(), COLOURS)
    root = ElementTree.fromstring(text)  # noqa: S314 (our own file)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"]) > 100
    for of_the_page in ("var(", "currentColor", "class="):
        assert of_the_page not in text
    assert COLOURS[0][0] in text


def test_series_differ_in_dash_and_colour_in_a_file() -> None:
    text = standalone(CHARTS[0].drawing.svg(), COLOURS)
    assert COLOURS[1][0] in text
    assert f'stroke-dasharray="{COLOURS[1][2]}"' in text
    for expected in ("load &lt;x&gt;", "seconds", "first &lt;a&gt;"):
        assert expected in text


@pytest.mark.parametrize("chart", [CHARTS[2], TWO_SERIES], ids=lambda each: each.name)
def test_series_without_lines_differ_in_shape(chart: Chart) -> None:
    """The corners and curves of each series are the same in the plot and in the legend."""
    drawn = re.findall(
        r'<g class="(?:dot )?(c\d)">(?:<title>.*?</title>)?<path d="([^"]*)"', chart.drawing.svg()
    )
    shapes = {(css, re.sub(r"[^A-Za-z]", "", path)) for css, path in drawn}
    assert len(drawn) == 4
    assert len(shapes) == len({css for css, _ in shapes}) == len({shape for _, shape in shapes}) == 2


def test_a_cell_of_a_grid_has_its_text() -> None:
    text = words(CHARTS[5].drawing.svg())
    assert "native" in text
    assert "no" in text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (float("nan"), "-"), (0.000123, "0.000123"), (1234, "1,234"), ("x", "x")]
)
def test_a_cell(value: float | str | None, text: str) -> None:
    assert shown(value) == text
