"""The report of an evaluation: the page stands alone and says what the figures say, and so does the table."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks.evaluate import plots
from benchmarks.evaluate.figures import Curve, Evaluation, Figure
from benchmarks.evaluate.page import page
from benchmarks.evaluate.report import REPORT_KEY, Evaluated, report, show, write
from predictors.learned.artifact import Artifact

OURS, THEIRS = "LSTM", "TF-IDF + ridge <tokens & co>"
FIGURES = (
    Figure("MAE", OURS, "all", 81.25, "tokens", 78.5, 84.0, 12_345),
    Figure("MAE", OURS, "family llama", 70.0, "tokens", 66.0, 75.0, 5000),
    Figure("MAE", THEIRS, "all", 90.5, "tokens", 87.0, 94.0, 12_345),
    Figure("coverage of p10 to p90", OURS, "all", 0.803),
)
CURVES = (
    Curve("Calibration", OURS, "nominal", "actual", (0.1, 0.5, 0.9), (0.12, 0.49, 0.88)),
    Curve("Error by length", OURS, "tokens", "MAE", (10.0, 100.0, 4000.0), (4.0, math.nan, 700.0)),
    Curve("Error by length", THEIRS, "tokens", "MAE", (10.0, 100.0, 4000.0), (5.0, 31.0, 800.0)),
    Curve("Nothing known", OURS, "tokens", "MAE", (), ()),
)
FOUND = Evaluation("length", FIGURES, CURVES, ("Capped answers count as <long>.",))
MADE = Evaluated(
    Artifact("length", (), {"a": np.ones(1)}, {"seed": 1}, "0123456789ab"),
    Path("artifacts/length.headway.npz"),
    ({"name": "made", "licence": "CC0", "prompts": 20, "answers": 1200},),
    FOUND,
)


class Page(HTMLParser):
    """Every start tag must be ended; collects outside addresses and classes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed() -> None:
    text = page(
        [("length predictor", "on made data", FOUND), ("latency predictor", "", Evaluation("latency"))]
    )
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.outside == []
    assert "script" not in parsed.tags
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    assert "nan" not in re.sub(r"<title>.*?</title>", "", text)
    assert parsed.tags.count("h2") == 2


def test_the_page_says_what_the_figures_say() -> None:
    text = unescape(re.sub(r"<[^>]+>", " ", page([("length predictor", "", FOUND)]).replace("<long>", "")))
    for told in ("81.2", "[78.5, 84.0]", "family llama", "0.803", THEIRS, "Calibration", "MAE (tokens)"):
        assert told in text
    assert "Nothing known" not in text


def test_curves_share_a_plot_by_title() -> None:
    looks = {OURS: "c0", THEIRS: "c1"}
    found = dict(plots.curves(CURVES, looks))
    assert list(found) == ["Calibration", "Error by length"]
    assert found["Error by length"].count('class="line') == 2
    # The point that is no number is left out; the line goes on.
    assert found["Error by length"].count("<circle") == 5
    # Shares are drawn against the diagonal, other axes are logarithmic where they span much.
    assert 'class="target"' in found["Calibration"]
    assert 'class="target"' not in found["Error by length"]
    assert ">1,000<" in found["Error by length"]


def test_scattered_points_are_not_joined() -> None:
    cloud = Curve("By task", OURS, "predicted", "actual", (0.1, 0.5), (0.3, 0.2), scattered=True)
    ((_, drawn),) = plots.curves([cloud], {OURS: "c0"})
    assert drawn.count("<circle") == 2
    assert 'class="line' not in drawn


def test_a_difference_looks_like_the_baseline_in_it() -> None:
    less = Figure("MAE", f"{OURS} - {THEIRS}", "all", -9.0)
    looks = plots.looks_of(
        Evaluation("length", (less, *FIGURES), (*CURVES, replace(CURVES[0], of="by source")))
    )
    assert looks == {OURS: "c0", THEIRS: "c1", less.of: "c1", "by source": "c0"}


def test_intervals_are_drawn_where_there_is_something_to_compare() -> None:
    looks = {OURS: "c0", THEIRS: "c1"}
    drawn = plots.intervals(FIGURES[:3], looks)
    assert drawn is not None
    assert drawn.count("<circle") == 3
    assert plots.intervals(FIGURES[3:], looks) is None
    with_unknown = (FIGURES[3], Figure("coverage of p10 to p90", THEIRS, "all", math.nan))
    assert plots.intervals(with_unknown, looks) is None


def test_a_dot_lies_within_its_interval() -> None:
    drawn = plots.intervals(FIGURES[:3], {OURS: "c0", THEIRS: "c1"})
    assert drawn is not None
    ends = re.findall(r'class="whisker c\d" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn)
    dots = re.findall(r'class="dot c\d" cx="([\d.]+)"', drawn)
    assert len(ends) == len(dots) == 3
    for (low, high), dot in zip(ends, dots, strict=True):
        assert float(low) < float(dot) < float(high)


def test_differences_are_drawn_and_told_apart() -> None:
    """They lie around zero, far from what they are differences of."""
    less = tuple(
        Figure("MAE", f"{OURS} - {THEIRS}", part, -9.0, "tokens", -12.0, -6.0)
        for part in ("all", "family llama")
    )
    text = page([("length predictor", "", Evaluation("length", FIGURES + less))])
    assert text.count("<figcaption>") == 2
    assert "<figcaption>MAE: difference</figcaption>" in text
    assert text.count("<table>") == 3
    assert [each.is_difference for each in (*FIGURES, *less)] == [False] * 4 + [True] * 2


def test_the_table_is_not_cut_off_in_a_file() -> None:
    out = io.StringIO()
    show(MADE, FIGURES, out)
    text = out.getvalue()
    assert text.splitlines()[0].startswith("length predictor 0123456789ab: evaluated on made (1,200 answers)")
    (line,) = [line for line in text.splitlines() if THEIRS in line]
    assert "90.5 tokens [87.0, 94.0]" in line
    assert "12,345" in line
    # Of a part all figures stand together, and what is the same as above is not told again.
    assert text.index(THEIRS) < text.index("family llama")
    assert text.count("MAE") == 1
    assert "Capped answers count as <long>." in text
    assert "…" not in text


@pytest.mark.parametrize("odd", ["[bold]part", "part [1/2]"])
def test_names_are_no_markup(odd: str) -> None:
    out = io.StringIO()
    show(MADE, (Figure("MAE", OURS, odd, 1.0),), out)
    assert odd in out.getvalue()


def test_the_report_is_written(tmp_path: Path) -> None:
    shown = write(tmp_path / "new" / "report", [MADE])
    assert shown.read_text(encoding="utf-8").startswith("<!doctype html>")
    told = orjson.loads((shown.parent / "report.json").read_bytes())
    assert told == report([MADE])
    assert told[REPORT_KEY] == 1
    (result,) = told["results"]
    assert result["kind"] == "length"
    assert result["artifact"] == "length-0123456789ab"
    assert result["made_of"] == {"seed": 1}
    assert result["evaluated_on"][0]["answers"] == 1200
    assert result["figures"][0]["value"] == 81.25
    assert result["curves"][1]["y"] == [4.0, None, 700.0]
