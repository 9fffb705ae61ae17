"""Every command, file, link and example that a page shows is one that works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import orjson
import pytest
import yaml

from backends.emulator.command import from_settings
from benchmarks.planning.batch import BatchConfig
from benchmarks.planning.files import ClusterConfig, ModelsConfig
from router import __version__
from router.cli import COMMANDS, build_parser
from router.config import loads
from tests.unit.docs.pages import PAGES, ROOT, Block, anchors, blocks, inline_code, links, name

TARGETS = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
MAKE_VARIABLES = set(re.findall(r"\b([A-Z]+)=", (ROOT / "Makefile").read_text(encoding="utf-8")))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where each shown command of ours stands, and its words."""
    for language in ("bash", "console"):
        for block in blocks(language):
            if block.page.name == "CONTRIBUTING.md" and "run" in block.info:
                continue  # commands of a changed tree, which `tests/integration/docs/test_contributing.py` runs
            for line in block.text.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ")
                if command.startswith(("headway ", "make ")):
                    yield f"{block}: {command}", first_command(command)


def first_command(line: str) -> list[str]:
    """The words of a line up to a pipe, a redirection or whatever else is the shell's."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set(words.punctuation_chars), words))


def check_make(words: list[str]) -> None:
    variables = {word.partition("=")[0] for word in words if "=" in word}
    assert variables <= MAKE_VARIABLES
    assert {word for word in words if "=" not in word} <= TARGETS


SHOWN = dict(commands())


@pytest.mark.parametrize("shown", SHOWN)
def test_a_shown_command_is_understood(shown: str) -> None:
    program, *words = SHOWN[shown]
    if program == "make":
        check_make(words)
        return
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is None:
        assert set(words) <= {"--help", "--version"}
        return
    args = build_parser(chosen).parse_args(words)  # SystemExit for what is unknown
    assert args.command == chosen


def test_all_commands_and_targets_are_shown_somewhere() -> None:
    everything = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [each for each in COMMANDS if f"headway {each}" not in everything] == []
    assert {"serve", "test", "check", "bench", "test-engines"} <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_inside_text_exist(page: Path) -> None:
    for code in inline_code(page):
        program, *words = code.split()
        if program == "make" and words:
            check_make(words)
        if program == "headway" and words:
            assert words[0] in COMMANDS or words[0] == "--help", code


#: Those of CONTRIBUTING.md are fleets of a changed tree (`tests/integration/docs/test_contributing.py`).
YAML_BLOCKS = [block for block in blocks("yaml") if block.page.name != "CONTRIBUTING.md"]


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=str)
def test_a_shown_fleet_can_be_served(block: Block) -> None:
    for word, kind in (("cluster", ClusterConfig), ("models", ModelsConfig), ("batch", BatchConfig)):
        if word in block.info:
            kind.model_validate(yaml.safe_load(block.text))
            return
    if "emulators" in block.info:
        assert [from_settings(each, str(block)).name for each in yaml.safe_load(block.text)]
        return
    fleet = loads(block.text, str(block))
    assert fleet.instances or fleet.scaling.pools
    assert all(fleet.candidates(each) for each in fleet.instances)


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_shown_json_is_json(block: Block) -> None:
    assert orjson.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), link
        if fragment:
            assert fragment in anchors(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        found = [
            (page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link
        ]
        waiting += [each for each in found if each.suffix == ".md"]
    assert reached == set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_path_of_a_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert re.findall(r"(?<![\w./])/(?:home|root|Users|tmp|mnt|work)(?:/\S*)?", text) == []


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
