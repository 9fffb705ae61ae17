"""The report of an evaluation: the page stands alone and says what the figures say, and so does the table."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson

from benchmarks.evaluate import plots
from benchmarks.evaluate.figures import Curve, Evaluation, Figure
from benchmarks.evaluate.report import REPORT_KEY, Evaluated, page, report, text, write
from benchmarks.pages.drawing import Drawing
from predictors.learned.artifact import Artifact
from tests.unit.benchmarks.parsed import assert_stands_alone, words

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


def test_the_page_stands_alone_and_is_well_formed() -> None:
    shown = [MADE, replace(MADE, found=Evaluation("latency"))]
    text = page(shown)
    assert text == page(shown)
    assert assert_stands_alone(text).tags.count("h2") == 2


def test_the_page_says_what_the_figures_say() -> None:
    text = words(page([MADE]))
    for told in ("81.2", "[78.5, 84.0]", "family llama", "0.803", THEIRS, "Calibration", "MAE (tokens)"):
        assert told in text
    assert "Nothing known" not in text


def drawn(drawing: Drawing) -> Counter[str]:
    """How many artists have which classes, names and their lines left out."""
    found = re.findall(r'<g class="((?:line|dot|whisker|target)[^"]*)"', drawing.svg())
    return Counter(found)


def test_curves_share_a_plot_by_title() -> None:
    classes = {OURS: "c0", THEIRS: "c1"}
    found = dict(plots.curves(CURVES, classes))
    assert list(found) == ["Calibration", "Error by length"]
    assert drawn(found["Error by length"]) == {"line c0": 1, "line c1": 1, "dot c0": 2, "dot c1": 3}
    # Shares are drawn against the diagonal, other axes are logarithmic where they span much.
    assert drawn(found["Calibration"])["target"] == 1
    assert found["Calibration"].axes[0].get_xscale() == "linear"
    assert found["Error by length"].axes[0].get_xscale() == "log"
    assert ">1,000<" in found["Error by length"].svg()


def test_scattered_points_are_not_joined() -> None:
    cloud = Curve("By task", OURS, "predicted", "actual", (0.1, 0.5), (0.3, 0.2), scattered=True)
    ((_, drawing),) = plots.curves([cloud], {OURS: "c0"})
    assert drawn(drawing) == {"target": 1, "dot c0": 2}


def test_a_difference_looks_like_the_baseline_in_it() -> None:
    less = Figure("MAE", f"{OURS} - {THEIRS}", "all", -9.0)
    classes = plots.classes_of(
        Evaluation("length", (less, *FIGURES), (*CURVES, replace(CURVES[0], of="by source")))
    )
    assert classes == {OURS: "c0", THEIRS: "c1", less.of: "c1", "by source": "c0"}


def test_intervals_are_drawn_where_there_is_something_to_compare() -> None:
    classes = {OURS: "c0", THEIRS: "c1"}
    drawing = plots.intervals(FIGURES[:3], classes)
    assert drawing is not None
    assert drawn(drawing) == {"whisker c0": 2, "dot c0": 2, "whisker c1": 1, "dot c1": 1}
    assert plots.intervals(FIGURES[3:], classes) is None
    with_unknown = (FIGURES[3], Figure("coverage of p10 to p90", THEIRS, "all", math.nan))
    assert plots.intervals(with_unknown, classes) is None


def test_a_dot_lies_within_its_interval() -> None:
    drawing = plots.intervals(FIGURES[:3], {OURS: "c0", THEIRS: "c1"})
    (axes,) = drawing.axes
    to_data = axes.transData.inverted()
    for line, dot in zip(axes.lines, axes.patches, strict=True):
        low, high = line.get_xdata()
        x, _ = to_data.transform(dot.get_transform().transform((0.0, 0.0)))
        assert low < x < high


def test_differences_are_drawn_and_told_apart() -> None:
    """They lie around zero, far from what they are differences of."""
    less = tuple(
        Figure("MAE", f"{OURS} - {THEIRS}", part, -9.0, "tokens", -12.0, -6.0)
        for part in ("all", "family llama")
    )
    text = page([replace(MADE, found=Evaluation("length", FIGURES + less))])
    assert text.count("<figcaption>") == 2
    assert "<figcaption>MAE: difference</figcaption>" in text
    assert text.count("<table>") == 3
    assert [each.is_difference for each in (*FIGURES, *less)] == [False] * 4 + [True] * 2


def test_the_table_says_what_the_figures_say() -> None:
    told = text(MADE, FIGURES)
    assert told.splitlines()[0].startswith("length predictor 0123456789ab: evaluated on made (1,200 answers)")
    (line,) = [line for line in told.splitlines() if THEIRS in line]
    assert "90.5 tokens [87.0, 94.0]" in line
    assert "12,345" in line
    # Of a part all figures stand together, and what is the same as above is not told again.
    assert told.index(THEIRS) < told.index("family llama")
    assert told.count("MAE") == 1
    assert "Capped answers count as <long>." in told


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
