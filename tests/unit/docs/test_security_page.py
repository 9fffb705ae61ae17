"""The threat model: every line names a test, and the test is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`((?:unit|integration|contract|browser)/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def threats() -> list[list[str]]:
    """The rows of the tables that have a column of tests."""
    rows, named = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            named = False
        elif cells[-1] == "test":
            named = True
        elif named and not set(line) <= set("|- "):
            rows.append(cells)
    return rows


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("row", threats(), ids=lambda row: row[0][:60])
def test_each_threat_names_tests_that_are_there(row: list[str]) -> None:
    named = _NAMED.findall(row[-1])
    assert named, f"no test stands beside: {row[0]}"
    for file, test in named:
        assert test in names_in(ROOT / "tests" / file), f"{file} has no {test}"


def test_the_table_is_read() -> None:
    assert len(threats()) > 30
