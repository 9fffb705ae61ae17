"""Training: split, train, evaluate on what was held out, describe the artifact."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.datasets.contents import rows, rows_by_source
from benchmarks.datasets.splits import digest, split
from benchmarks.evaluate.figures import evaluator
from benchmarks.evaluate.report import Evaluated
from benchmarks.terminal import Progress
from benchmarks.training.about import with_about
from predictors.learned.artifact import Artifact, load, save
from predictors.learned.models import ArtifactKind
from predictors.training.dataset import Dataset, DatasetError


class Train(Protocol):
    """Raises DatasetError for data that it cannot learn from."""

    def __call__(self, data: Dataset, *, seed: int, progress: Progress) -> Artifact: ...


def trainer(kind: ArtifactKind) -> Train:
    """What trains this kind. It needs the extra `train`."""
    return cast(Train, import_module(f"predictors.training.{kind.training}").train)


def train_and_evaluate(
    kind: ArtifactKind,
    data: Dataset,
    out: Path,
    *,
    seed: int = 1,
    held_out: float = 0.2,
    final: bool = False,
    prepare: Callable[[Dataset], Dataset] = lambda data: data,
    progress: Progress = lambda _: None,
) -> Evaluated:
    """Train on all but the held-out part, evaluate on that with baselines fitted on the rest, and write the
    artifact to `out`. `final`: train once more, on everything, before it is written. `prepare` makes of a
    part what is trained on. Raises DatasetError for data that it cannot be learned from."""
    train_on, evaluate = trainer(kind), evaluator(kind)
    if not rows(kind, data):
        raise DatasetError(f"nothing in the data that a {kind.name} predictor can be trained on")
    train, test = split(data, held_out, seed, of_prompts=kind.of_prompts)
    used = prepare(train)
    with threadpool_limits(limits=1):  # sums must not depend on how many threads share them
        artifact = train_on(used, seed=seed, progress=progress)
        progress("evaluating on the held-out part")
        found = evaluate(artifact, test, train, seed=seed)
        if final:
            used = prepare(data)
            artifact = train_on(used, seed=seed, progress=progress)
    part = digest(train, of_prompts=kind.of_prompts)
    artifact = with_about(
        artifact, used, found, seed=seed, held_out=held_out, training_part=part, final=final
    )
    path = save(artifact, out)
    # As it is read again: an artifact that does not load is an error here.
    return Evaluated(load(path, kind.name, kind.model.features), path, rows_by_source(test), found)
