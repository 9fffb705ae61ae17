"""Every command that a page shows is run, page by page, as `reader` says; those that are not are named here, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.docs.reader import MAKE_SERVE, Reader
from tests.unit.docs.pages import PAGES, ROOT, Block, blocks, blocks_of, name

#: Words that a block may have after its language.
WORDS = {"run", "server", "emulators"}

_LONG = "minutes to hours of work; the commands' tests run them small"
_ENGINES = "asks real engines"
_DATA = "downloads published sets or trains on them"
_INSTALLS = "installs, or runs these very tests"

#: Blocks that stay unrun, by page and first line.
NOT_RUN = {
    ("README.md", ".venv/bin/pip install"): _INSTALLS,
    ("docs/results.md", "python -m benchmarks.claims"): _LONG,
    ("docs/results.md", "python -m benchmarks.cost_order"): _LONG,
    ("CONTRIBUTING.md", "make dev"): _INSTALLS,
    ("CONTRIBUTING.md", "make test ARGS="): _INSTALLS,
    ("CONTRIBUTING.md", "headway compare --scenario"): _LONG,
    ("docs/calibration.md", "for rate in"): _ENGINES,
    ("docs/calibration.md", "python -m benchmarks.calibrate.measure"): _ENGINES,
    ("docs/calibration.md", "headway compare --workload azure.jsonl"): _DATA,
    ("docs/datasets.md", "headway dataset release"): _DATA,
    ("docs/evaluation.md", "headway train length"): _LONG,
    ("docs/evaluation.md", "headway evaluate"): _LONG,
    ("docs/evaluation.md", "make train-defaults"): _DATA,
    ("docs/experiments.md", "headway experiment"): _LONG,
    ("docs/experiments.md", "headway experiment unpredictability --url"): _ENGINES,
    ("docs/install.md", "make install"): _INSTALLS,
    ("docs/judging.md", "headway judge"): _ENGINES,
    ("docs/oracles.md", "from benchmarks.oracles"): "a fragment: its names stand for what the text says",
    ("docs/policies.md", "headway compare --scenario"): _LONG,
    ("docs/predictions.md", "headway compare --scenario"): _LONG,
    ("docs/reproductions.md", "headway reproduce"): "needs the published cases",
    ("docs/scaling.md", "python -m benchmarks.scaling"): _DATA,
    ("docs/scenarios.md", "headway compare --scenario"): _LONG,
    ("docs/simulator.md", "headway compare --scenario day-cycle"): _LONG,
    ("docs/simulator.md", "headway workload build azure_conv"): _DATA,
    ("docs/training.md", "headway collect"): _ENGINES,
    ("docs/training.md", "headway train"): _LONG,
    ("docs/training.md", "headway evaluate"): _LONG,
    ("docs/workloads.md", "headway workload build azure_conv"): _DATA,
    ("docs/workloads.md", "headway replay"): _LONG,
}


#: Pages of many commands, which tests of their own run in every form: their blocks are run at night.
NIGHTLY = {"docs/keys.md", "docs/operations.md", "docs/quickstart.md", "docs/records.md"}


def is_run(block: Block) -> bool:
    return "run" in block.info or (block.info[0] == "python" and any("file=" in word for word in block.info))


def why_not(block: Block) -> list[tuple[str, str]]:
    """The entries of NOT_RUN that mean a block."""
    return [
        (page, start) for page, start in NOT_RUN if page == name(block.page) and block.text.startswith(start)
    ]


SHOWN = [*blocks("bash"), *blocks("python")]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_shown_command_is_run_or_it_is_said_why_not(block: Block) -> None:
    assert is_run(block) != bool(why_not(block))
    assert {word for word in block.info[1:] if "=" not in word} <= WORDS


def test_nothing_is_excused_that_is_not_shown() -> None:
    assert {entry for block in SHOWN for entry in why_not(block)} == set(NOT_RUN)


def test_make_serve_is_the_demo() -> None:
    shown, meant = MAKE_SERVE
    recipe = (
        (ROOT / "Makefile")
        .read_text(encoding="utf-8")
        .partition(f"\n{shown.removeprefix('make ')}: install ")[2]
    )
    assert meant.removeprefix("headway ") in recipe.splitlines()[1]


#: Pages that other tests follow, with the files that they need.
ELSEWHERE = {
    "CONTRIBUTING.md",  # `test_contributing`
    "examples/README.md",  # `tests.integration.examples`
}

RUN_PAGES = [
    pytest.param(page, id=name(page), marks=[pytest.mark.nightly] if name(page) in NIGHTLY else [])
    for page in PAGES
    if any(map(is_run, blocks_of(page))) and name(page) not in ELSEWHERE
]


@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        for block in blocks_of(page):
            reader.follow(block)
