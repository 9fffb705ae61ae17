"""Evaluations as one self-contained HTML page: no script, no outside file, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.evaluate import plots
from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.pages import Cell, Row, Table, render
from benchmarks.pages.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of one name and unit: their plot, where there is something to compare, with (CSS class, name) of what
    is in it, and their table."""

    caption: str
    unit: str
    drawing: Drawing | None
    named: list[tuple[str, str]]
    table: Table


def page(results: Sequence[tuple[str, str, Evaluation]]) -> str:
    """The page of (title, subtitle, evaluation)."""
    sections = [
        (title[:1].upper() + title[1:], subtitle, found.notes, *_drawn(found))
        for title, subtitle, found in results
    ]
    return render("evaluate/page.html", sections=sections, colours=plots.COLOURS)


def _drawn(found: Evaluation) -> tuple[list[tuple[str, Drawing]], list[Group]]:
    """(curves with their titles, figures)."""
    classes = plots.classes_of(found)
    by_name: dict[tuple[str, str, bool], list[Figure]] = {}
    for each in found.figures:  # differences apart
        by_name.setdefault((each.name, each.unit, each.is_difference), []).append(each)
    return plots.curves(found.curves, classes), [_group(figures, classes) for figures in by_name.values()]


def _group(figures: Sequence[Figure], classes: Mapping[str, str]) -> Group:
    first = figures[0]
    parts = dict.fromkeys(each.part for each in figures)
    ofs = dict.fromkeys(each.of for each in figures)
    known = {(each.part, each.of): each for each in figures}
    rows = [Row([Cell(part), *(_cell(known.get((part, of))) for of in ofs)]) for part in parts]
    return Group(
        f"{first.name}: difference" if first.is_difference else first.name,
        first.unit,
        plots.intervals(figures, classes),
        [(classes[of], of) for of in ofs],
        Table([Cell(""), *(Cell(of) for of in ofs)], rows),
    )


def _cell(figure: Figure | None) -> Cell:
    if figure is None:
        return Cell("")
    return Cell(
        plots.value_text(figure.value), " ".join(filter(None, (plots.interval_text(figure), figure.verdict)))
    )
