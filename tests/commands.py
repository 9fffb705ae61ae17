"""Runs `headway` in this process."""

from __future__ import annotations

import pytest

from router.cli import main


def refusal_of(capsys: pytest.CaptureFixture[str], command: str, *words: object) -> str:
    """The line by which a command refuses bad input. It is all that the command prints."""
    capsys.readouterr()
    assert main([command, *map(str, words)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith((f"headway {command}: ", "headway: "))
    assert error.count("\n") == 1, error
    return error
