"""What trains and what evaluates each kind of artifact (`predictors.learned.models.KINDS`). Modules are imported when they
are first needed, so that training one kind does not wait for what another one imports."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from benchmarks.evaluate.figures import Evaluation
from predictors.learned.artifact import Artifact
from predictors.learned.models import ArtifactKind
from predictors.training.dataset import Dataset

Progress = Callable[[str], None]


class Train(Protocol):
    """Raises DatasetError for data that it cannot learn from."""

    def __call__(self, data: Dataset, *, seed: int, progress: Progress | None) -> Artifact: ...


class Evaluate(Protocol):
    """`train` is what the baselines are fitted on (None: no baselines). Raises DatasetError for data that show
    nothing."""

    def __call__(
        self, artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int
    ) -> Evaluation: ...


def trainer(kind: ArtifactKind) -> Train:
    """What trains this kind. It needs the extra `train`."""
    return cast(Train, import_module(f"predictors.training.{kind.training}").train)


def evaluator(kind: ArtifactKind) -> Evaluate:
    """What evaluates this kind. A kind without a module in `benchmarks.evaluate` has no figures."""
    module = f"benchmarks.evaluate.{kind.training}"
    return _no_figures if find_spec(module) is None else cast(Evaluate, import_module(module).evaluate)


def _no_figures(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int) -> Evaluation:
    return Evaluation(artifact.kind, notes=(f"Nothing evaluates {artifact.kind} artifacts.",))


def rows(kind: ArtifactKind, data: Dataset) -> int:
    """How many rows of a data set this kind can use, roughly: answers with a length or a quality, or attempts."""
    if kind.learns_from == "attempts":
        return len(data.attempts)
    if kind.learns_from == "lengths":
        return sum(each.output_tokens is not None for each in data.answers)
    return sum(each.quality is not None for each in data.answers)
