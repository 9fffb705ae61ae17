"""What evaluates each kind of artifact (`predictors.learned.models.KINDS`). Its module is imported when it is first needed,
so that one kind does not wait for what another one imports."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from benchmarks.evaluate.figures import Evaluation
from predictors.learned.artifact import Artifact
from predictors.learned.models import ArtifactKind
from predictors.training.dataset import Dataset


class Evaluate(Protocol):
    """`train` is what the baselines are fitted on (None: no baselines). Raises DatasetError for data that show
    nothing."""

    def __call__(
        self, artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int
    ) -> Evaluation: ...


def evaluator(kind: ArtifactKind) -> Evaluate:
    """What evaluates this kind. A kind without a module in `benchmarks.evaluate` has no figures."""
    module = f"benchmarks.evaluate.{kind.training}"
    return _no_figures if find_spec(module) is None else cast(Evaluate, import_module(module).evaluate)


def _no_figures(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int) -> Evaluation:
    return Evaluation(artifact.kind, notes=(f"Nothing evaluates {artifact.kind} artifacts.",))
