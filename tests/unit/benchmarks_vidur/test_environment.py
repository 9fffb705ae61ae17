"""When Vidur's environment counts as installed, and what is never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.vidur.environment import REQUIREMENTS, InstallError, install, installed


def test_only_an_installation_that_ended_with_these_pins_counts(tmp_path: Path) -> None:
    assert not installed(tmp_path)
    (tmp_path / "installed.txt").write_text("vidur==0.0.1\n")
    assert not installed(tmp_path)
    (tmp_path / "installed.txt").write_text(REQUIREMENTS.read_text())
    assert installed(tmp_path)


def test_every_requirement_is_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert "vidur==0.0.26" in lines
    assert all(line.count("==") == 1 for line in lines)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InstallError, match="no Python environment"):
        install(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
