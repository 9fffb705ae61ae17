"""Text that a command writes into a page of the documentation: between marks, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def replaced(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of this name. Raises ValueError for a page without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"no marks {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown of rows by heading, of which there is at least one."""
    return table(list(rows[0]), (list(row.values()) for row in rows))
