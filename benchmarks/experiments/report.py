"""What an experiment found, and the folder that it is written to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import router
from benchmarks.compare.tables import three_digits
from benchmarks.evaluate.plots import COLOURS
from benchmarks.pages import Cell, Row, Table, marked, render
from benchmarks.pages.drawing import Drawing
from benchmarks.pages.standalone import standalone
from benchmarks.result_lines import result_lines
from benchmarks.training.about import commit

REPORT_KEY = "headway_experiment"
#: Of a table's cell.
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Results:
    """A table. Columns have their units in their names; numbers are rounded where they are shown, not in results.json."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Value]]) -> Results:
        """Rows by column; what a row lacks is unknown."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return cls(title, columns, [[row.get(name) for name in columns] for row in rows])


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure: `name` is its file's, `caption` says what is seen."""

    name: str
    caption: str
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class Section:
    """One question of an experiment. `text` has sentences: how it was measured, and what it shows."""

    title: str
    text: Sequence[str]
    tables: Sequence[Results] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All of an experiment. `about` is its header."""

    name: str
    title: str
    about: Mapping[str, Any]
    sections: Sequence[Section] = field(default_factory=tuple)


def header(seed: int, data: Path | None, **more: Any) -> dict[str, Any]:
    """What one needs to do it again."""
    return {
        "commit": commit(()),
        "version": router.__version__,
        "command": f"headway {shlex.join(sys.argv[1:])}",
        "seed": seed,
        "data": "what comes with Headway" if data is None else "what comes with Headway, and published sets",
        **{name: value for name, value in more.items() if value is not None},
    }


def write(folder: Path, report: Report) -> Path:
    """Write results.json, tables.md, figures/*.svg and index.html; returns the page's path. OSError where that cannot be."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(result_lines(as_dict(report)), encoding="utf-8")
    (folder / "tables.md").write_text(markdown(report), encoding="utf-8")
    for chart in (each for section in report.sections for each in section.charts):
        (folder / "figures" / f"{chart.name}.svg").write_text(
            standalone(chart.drawing.svg(), COLOURS), encoding="utf-8"
        )
    page = folder / "index.html"
    page.write_text(
        render("experiments/page.html", report=report, table=_table, colours=COLOURS), encoding="utf-8"
    )
    return page


def as_dict(report: Report) -> dict[str, Any]:
    """What results.json holds."""
    return {
        REPORT_KEY: 1,
        "experiment": report.name,
        "title": report.title,
        **report.about,
        "sections": [
            {
                "title": section.title,
                "text": list(section.text),
                "tables": [asdict(each) for each in section.tables],
                "figures": [
                    {"file": f"figures/{each.name}.svg", "caption": each.caption} for each in section.charts
                ],
            }
            for section in report.sections
        ],
    }


def markdown(report: Report) -> str:
    """All tables, under the titles of their sections."""
    lines = [f"# {report.title}", ""]
    lines += [f"- {name}: `{value}`" for name, value in report.about.items()]
    for section in report.sections:
        lines += ["", f"## {section.title}", "", *section.text]
        for each in section.tables:
            cells = [[_cell(shown(value)) for value in row] for row in each.rows]
            lines += ["", f"{each.title}:", "", marked.table([*map(_cell, each.columns)], cells)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _table(results: Results) -> Table:
    rows = [Row([Cell(shown(value)) for value in row]) for row in results.rows]
    return Table([Cell(column) for column in results.columns], rows)


def interval(low: float | None, high: float | None, digits: str = ".2f") -> str | None:
    """The ends of an interval as a cell; None where there is none."""
    return None if low is None or high is None else f"{low:{digits}} to {high:{digits}}"


def shown(value: Value) -> str:
    """A cell's text: three digits of a fraction, a dash for what is unknown."""
    if value is None or value != value:  # noqa: PLR0124 (NaN)
        return "-"
    if isinstance(value, float):
        return three_digits(value)
    return f"{value:,}" if isinstance(value, int) else value
