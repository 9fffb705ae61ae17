"""The examples of CONTRIBUTING.md, followed to the letter in a copy of the tree: what each adds is checked and runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.docs.reader import Reader
from tests.unit.docs.pages import ROOT, Block, sections_of

#: What an example may change, and what its commands need.
COPIED = (
    *("router", "policies", "predictors", "backends", "benchmarks", "tests"),
    *("docs", "examples", "fleets", "deploy"),
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", "Makefile"),
)


def is_followed(block: Block) -> bool:
    """Whether a block changes the tree or is run in it."""
    return "run" in block.info or any(word.startswith("file=") for word in block.info)


EXAMPLES = {
    heading: blocks
    for heading, blocks in sections_of(ROOT / "CONTRIBUTING.md").items()
    if any(map(is_followed, blocks))
}


def test_there_is_an_example_of_each() -> None:
    assert {"Adding a policy", "Adding an engine kind", "Adding a fleet-file key"} <= EXAMPLES.keys()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_changes_of_an_example_fit_the_tree(heading: str, tmp_path: Path) -> None:
    changes = [block for block in EXAMPLES[heading] if not {"run", "output"} & set(block.info)]
    tree = tmp_path / "tree"
    for word in (word for block in changes for word in block.info if word.startswith("file=")):
        file = word.removeprefix("file=")
        assert (ROOT / file).parent.is_dir()
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, tree / file)
    with Reader(tmp_path, tree) as reader:
        for block in changes:
            reader.follow(block)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("heading", EXAMPLES)
def test_an_example_works(heading: str, tree: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, tree) as reader:
        for block in EXAMPLES[heading]:
            reader.follow(block)
        code = [
            word.removeprefix("file=") for each in EXAMPLES[heading] for word in each.info if ".py" in word
        ]
        lint = f"ruff format --check {' '.join(code)}\nruff check {' '.join(code)}\n"
        reader.follow(Block(ROOT / "CONTRIBUTING.md", 0, ("bash", "run"), lint))
