"""The documentation as the tests read it: pages, fenced blocks, links, anchors, table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples/README.md", *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, the words after the fence, its text."""

    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def name(page: Path) -> str:
    """A page as test ids show it."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, tuple(match[1].split()), match[2])
        for match in _FENCE.finditer(text)
    ]


def sections_of(page: Path) -> dict[str, list[Block]]:
    """The blocks of a page by the second-level heading that they stand under."""
    found: dict[str, list[Block]] = {}
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks_of(page):
        above = (line for line in reversed(lines[: block.line]) if line.startswith("## "))
        found.setdefault(next(above, "").removeprefix("## "), []).append(block)
    return found


def blocks(language: str) -> list[Block]:
    """All blocks of a language, over all pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.info[:1] == (language,)]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def inline_code(page: Path) -> list[str]:
    return _CODE.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(page: Path) -> Iterator[str]:
    """The code words in the first column of every table of a page."""
    for line in prose(page).splitlines():
        if line.startswith("|"):
            yield from _CODE.findall(line.split("|")[1])
