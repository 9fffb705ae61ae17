"""Templates of jinja2. The pages of the reports load nothing from elsewhere, in light and dark: `base.html` is the frame of every
one, `parts.html` has what they share. Text is escaped; a `Drawing` is inserted as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent),
    autoescape=select_autoescape(("html", "svg")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """What a template under `benchmarks/` makes, such as `compare/page.html`. Only HTML and SVG escape texts."""
    return _TEMPLATES.get_template(template).render(values)


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: its text, a paler `note` behind it, CSS classes and an inline style."""

    text: str
    note: str = ""
    css: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row. `chip`: the first cell has a mark in the colour of `css`."""

    cells: list[Cell]
    css: str = ""
    chip: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows. `above` are headings over several columns: (text, columns)."""

    headings: list[Cell]
    rows: list[Row]
    above: tuple[tuple[str, int], ...] = ()
