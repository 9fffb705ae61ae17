"""A page as its parser sees it."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser


class Parsed(HTMLParser):
    """Every start tag must be ended. Collects tags, ids, and addresses that are not inside of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name.endswith(("src", "href")) and value]
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_stands_alone(page: str) -> Parsed:
    """The page is well formed, loads nothing, runs nothing, and has each id once."""
    parsed = Parsed(page)
    assert parsed.open == []
    assert parsed.outside == []
    assert "script" not in parsed.tags
    assert "url(" not in page
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "prefers-color-scheme: dark" in page
    assert "nan" not in words(page).lower()
    return parsed


def words(page: str) -> str:
    """What a reader sees of it, with the titles under the pointer."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split())
