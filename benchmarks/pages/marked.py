"""Text that a command writes into a page of the documentation, between marks."""

from __future__ import annotations


def replaced(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of this name. Raises ValueError for a page without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"no marks {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
