"""The page's style sheets and scripts have nothing that no view uses."""

from __future__ import annotations

import re
from importlib.resources import files

NAME = re.compile(r"[\w-]+")
FOLDER = files("router.ui")


def texts(*kinds: str) -> dict[str, str]:
    return {each.name: each.read_text("utf-8") for each in FOLDER.iterdir() if each.name.endswith(kinds)}


def test_each_class_of_the_style_sheets_is_given_to_an_element() -> None:
    given = {name for text in texts(".js", ".html").values() for name in NAME.findall(text)}
    given |= {f"k{number}" for number in range(1, 11)}  # a series' colour: its name is made from a number
    for sheet, text in texts(".css").items():
        selectors = " ".join(re.findall(r"([^{}]+)\{", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
        assert set(re.findall(r"\.([a-z][\w-]*)", selectors)) <= given, sheet


def test_each_export_is_used_by_another_script() -> None:
    scripts = texts(".js")
    for script, text in scripts.items():
        others = {name for other in scripts if other != script for name in NAME.findall(scripts[other])}
        exported = set(
            re.findall(r"^export (?:async )?(?:function|const|let|class) (\w+)", text, re.MULTILINE)
        )
        assert exported <= others, script
