"""The Makefile's own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def test_an_environment_that_was_left_half_made_is_completed(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    made = subprocess.run(
        ["make", "install", f"VENV={venv}"],
        cwd=REPOSITORY,
        env={**os.environ, **nowhere},  # nothing more is installed
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert made.returncode == 2
    assert "No module named pip" not in made.stderr
    assert "No matching distribution" in made.stderr


@pytest.mark.parametrize("order", [("slow", "fast"), ("fast", "slow"), ("missing", "old", "fast")])
def test_the_faster_interpreter_makes_the_environment(tmp_path: Path, order: tuple[str, ...]) -> None:
    for name, command in {
        "slow": f'exec {sys.executable} -X tracemalloc=25 "$@"',  # each allocation is followed
        "fast": f'exec {sys.executable} "$@"',
        "old": "exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    candidates = [str(tmp_path / name) for name in order]
    chosen = subprocess.run(
        ["scripts/fastest-python", *candidates], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert chosen.stdout.split() == [str(tmp_path / "fast")]


def test_where_no_interpreter_will_do_python3_is_named_so_that_make_says_why() -> None:
    chosen = subprocess.run(
        ["scripts/fastest-python", "/missing"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert chosen.stdout.split() == ["python3"]
