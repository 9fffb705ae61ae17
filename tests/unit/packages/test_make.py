"""The Makefile's own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
