"""The report of an evaluation: JSON, a self-contained HTML page, and the same figures as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.evaluate import plots
from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.pages import Cell, Row, Table, render
from benchmarks.terminal import aligned_table
from predictors.learned.artifact import Artifact

REPORT_KEY = "headway_evaluation"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An artifact, where it lies, what it was evaluated on, and what was found. `rows` are counts of the test
    data by source, as `benchmarks.datasets.contents` gives them."""

    artifact: Artifact
    path: Path
    rows: Sequence[Mapping[str, Any]]
    found: Evaluation

    def as_dict(self) -> dict[str, Any]:
        """One entry of `results` in report.json."""
        return {
            "kind": self.artifact.kind,
            "artifact": self.artifact.name,
            "path": str(self.path),
            "made_of": dict(self.artifact.about),
            "evaluated_on": [dict(row) for row in self.rows],
            **{name: part for name, part in self.found.as_dict().items() if name != "kind"},
        }


def report(results: Iterable[Evaluated]) -> dict[str, Any]:
    """The report of one or several artifacts."""
    return {REPORT_KEY: 1, "results": [each.as_dict() for each in results]}


def write(folder: Path, results: Sequence[Evaluated]) -> Path:
    """Write report.json and report.html; returns the page's path. OSError where that cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(orjson.dumps(report(results), option=orjson.OPT_INDENT_2) + b"\n")
    shown = folder / "report.html"
    shown.write_text(page(results), encoding="utf-8")
    return shown


def page(results: Sequence[Evaluated]) -> str:
    """The page: no script, no outside file, light and dark."""
    sections = []
    for each in results:
        title, classes = _title(each), plots.classes_of(each.found)
        by_name: dict[tuple[str, str, bool], list[Figure]] = {}
        for figure in each.found.figures:  # differences apart
            by_name.setdefault((figure.name, figure.unit, figure.is_difference), []).append(figure)
        sections.append(
            {
                "title": title[:1].upper() + title[1:],
                "subtitle": _subtitle(each),
                "notes": each.found.notes,
                "curves": plots.curves(each.found.curves, classes),
                "groups": [_group(figures, classes) for figures in by_name.values()],
            }
        )
    return render("evaluate/page.html", sections=sections, colours=plots.COLOURS)


def _group(figures: Sequence[Figure], classes: plots.Classes) -> dict[str, Any]:
    """Figures of one name and unit: their plot, where there is something to compare, with (CSS class, name) of what is in it,
    and their table."""
    first = figures[0]
    parts = dict.fromkeys(each.part for each in figures)
    ofs = dict.fromkeys(each.of for each in figures)
    known = {(each.part, each.of): each for each in figures}
    rows = [Row([Cell(part), *(_cell(known.get((part, of))) for of in ofs)]) for part in parts]
    return {
        "caption": f"{first.name}: difference" if first.is_difference else first.name,
        "unit": first.unit,
        "drawing": plots.intervals(figures, classes),
        "named": [(classes[of], of) for of in ofs],
        "table": Table([Cell(""), *(Cell(of) for of in ofs)], rows),
    }


def _cell(figure: Figure | None) -> Cell:
    if figure is None:
        return Cell("")
    return Cell(
        plots.value_text(figure.value), " ".join(filter(None, (plots.interval_text(figure), figure.verdict)))
    )


def text(each: Evaluated, figures: Sequence[Figure]) -> str:
    """Figures of an evaluation and its notes: a line a figure, equal names and parts told once."""
    names, parts = ([getattr(figure, of) for figure in figures] for of in ("name", "part"))
    rows: list[dict[str, str]] = []
    before: tuple[str, ...] = ("", "")
    for figure in sorted(figures, key=lambda one: (names.index(one.name), parts.index(one.part))):
        place = figure.name, figure.part
        rows.append(
            {
                "figure": "" if figure.name == before[0] else figure.name,
                "on": "" if place == before else figure.part,
                "of": figure.of,
                "verdict by the interval": figure.verdict,
                "value [95 % interval]": plots.figure_text(figure),
                "rows": f"{figure.rows:,}" if figure.rows else "",
            }
        )
        before = place
    return "\n".join([f"{_title(each)}: {_subtitle(each)}", *aligned_table(rows, left=4), *each.found.notes])


def _title(each: Evaluated) -> str:
    return f"{each.artifact.kind} predictor {each.artifact.digest}".rstrip()


def _subtitle(each: Evaluated) -> str:
    rows = [f"{row['name']} ({_counts(row)})" for row in each.rows]
    return f"evaluated on {', '.join(rows)}" if rows else "evaluated"


def _counts(row: Mapping[str, Any]) -> str:
    """The number of answers, else of attempts, else of what there is."""
    for name in ("answers", "attempts", "prompts", "runs"):
        if row.get(name):
            return f"{row[name]:,} {name}"
    return "nothing"
