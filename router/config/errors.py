"""Errors in a fleet file, with the path and the line of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.config.crosscheck import Path
from router.config.masking import dotted


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `line` counts from 1; None if there is no file."""

    path: Path
    reason: str
    line: int | None = None


class ConfigError(ValueError):
    """A fleet file (or one instance) is not valid. The text has one line for each problem: `FILE:LINE: path.to.key:
    reason (given: VALUE)`. `router.config.masking` hides a value that may be a secret."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(self._line(problem) for problem in self.problems))

    def _line(self, problem: Problem) -> str:
        place = self.source if problem.line is None else f"{self.source}:{problem.line}"
        return ": ".join(part for part in (place, dotted(problem.path), problem.reason) if part)
