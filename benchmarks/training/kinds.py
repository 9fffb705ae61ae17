"""The predictors by name, four that serve and two of baselines (text, trees): what trains one, what evaluates it, what
features it takes. Each is imported only when asked for, so that length training does not wait for what latency needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from benchmarks.evaluate.figures import Evaluation
from predictors.learned.artifact import Artifact
from predictors.training.dataset import Dataset

Progress = Callable[[str], None]


class Train(Protocol):
    """Raises DatasetError for data that it cannot learn from."""

    def __call__(self, data: Dataset, *, seed: int, progress: Progress | None) -> Artifact: ...


class Evaluate(Protocol):
    """`train`: what the baselines are fitted on; None leaves them out. Raises DatasetError for data that tell
    nothing."""

    def __call__(
        self, artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int
    ) -> Evaluation: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One predictor. `of_prompts`: learned from prompts and answers, held out by group of prompts; else from
    runs, held out by load level or time. `module` names what trains and evaluates it, where not its name does."""

    name: str
    serving: str
    features_name: str
    of_prompts: bool
    module: str | None = None

    def train(self) -> Train:
        """Needs the extra `train`."""
        return cast(Train, import_module(f"predictors.training.{self.module or self.name}").train)

    def evaluate(self) -> Evaluate:
        return cast(Evaluate, import_module(f"benchmarks.evaluate.{self.module or self.name}").evaluate)

    def features(self) -> tuple[str, ...]:
        """What an artifact of this kind must have been made with."""
        return cast(tuple[str, ...], getattr(import_module(self.serving), self.features_name))

    def rows(self, data: Dataset) -> int:
        """How much of a data set this kind can use, roughly: answers with a length or a quality, or attempts."""
        if not self.of_prompts:
            return len(data.attempts)
        wanted = "output_tokens" if self.name == "length" else "quality"
        return sum(getattr(each, wanted) is not None for each in data.answers)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("length", "predictors.learned.length_model", "LENGTH_FEATURES", True),
        Kind("latency", "predictors.learned.latency.features", "LATENCY_FEATURES", False),
        Kind("memory", "predictors.learned.memory", "MEMORY_FEATURES", False),
        Kind("relevance", "predictors.learned.relevance", "RELEVANCE_FEATURES", True),
        Kind("text", "predictors.learned.text_only", "TEXT_ONLY_FEATURES", True, "text_only"),
        Kind("trees", "predictors.learned.trees", "TREE_FEATURES", False),
    )
}
