"""Runs `headway` in this process, which has imported everything already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from router.cli import main


@dataclass(frozen=True)
class Done:
    """A command that has ended, and what it printed."""

    code: int
    out: str
    err: str


class Headway:
    """The command, as the fixture `headway` gives it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Done:
        self._capsys.readouterr()
        try:
            code = main([*map(str, words)])
        except SystemExit as end:  # argparse's own
            code = int(end.code or 0)
        return Done(code, *self._capsys.readouterr())

    def out(self, *words: object, code: int = 0) -> str:
        """The output of a command that ends with this exit code."""
        done = self(*words)
        assert done.code == code, done.err
        return done.out

    def json(self, *words: object, code: int = 0) -> Any:
        """The output of a command with `--json`."""
        return json.loads(self.out(*words, "--json", code=code))

    def err(self, *words: object, code: int) -> str:
        """The errors of a command that ends with this exit code."""
        done = self(*words)
        assert done.code == code, done.out
        return done.err

    def refusal(self, command: str, *words: object) -> str:
        """The line by which a command refuses bad input. It is all that the command prints."""
        done = self(command, *words)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith((f"headway {command}: ", "headway: "))
        assert done.err.count("\n") == 1, done.err
        return done.err
