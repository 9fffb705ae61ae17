"""A scenario: what is compared, in the words of the command line. `reading` says what its file looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from benchmarks.scenarios.answers import Answers, with_answers
from benchmarks.workloads.build import build
from benchmarks.workloads.format import Header, WorkloadRequest
from benchmarks.workloads.options import BuildOptions
from router.config import FleetConfig
from router.config.fields import Positive, Share


@dataclass(frozen=True, slots=True)
class Loss:
    """An instance is lost `at` a share of the workload's span and back after another share."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    instance: str
    at: Share
    lasts: Annotated[Positive, Field(le=1)]

    def meets(self, other: Loss) -> bool:
        """Whether both are of one instance at one time."""
        return (
            self.instance == other.instance
            and other.at < self.at + self.lasts
            and self.at < other.at + other.lasts
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario in its full or small form. `line` has the arguments of `headway workload build`, `source`
    and `options` are these arguments parsed; `answers` are by model, where the source has none of its own."""

    name: str
    about: str
    fleet: FleetConfig
    line: str
    source: str
    options: BuildOptions
    answers: Mapping[str, Answers]
    policies: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int
    losses: tuple[Loss, ...]

    def requests(self, seed: int, environment: Mapping[str, str]) -> tuple[Header, list[WorkloadRequest]]:
        """The workload of a seed: it draws prompts, routing parameters and, for generators, everything."""
        header, requests = build(self.source, replace(self.options, seed=seed), environment)
        if self.answers:
            by_model = {model: asdict(answers) for model, answers in self.answers.items()}
            header = replace(header, details={**header.details, "answers": by_model})
            requests = list(with_answers(requests, self.answers, seed))
        return header, requests

    def made_of(self) -> dict[str, Any]:
        """What identifies its workload."""
        return {
            "line": self.line,
            "answers": {model: asdict(answers) for model, answers in self.answers.items()},
        }
