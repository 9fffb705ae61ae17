"""The kinds of trained models: where each serves and is trained. Loads the artifacts that serve.

To add a kind: a module here with the model that serves, a module in `predictors.training` that trains it, a row in `KINDS`
and a member of `Models` (CONTRIBUTING.md, "Adding a predictor").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from predictors.learned import artifact
from predictors.learned.artifact import ArtifactError
from predictors.learned.latency import LatencyModel
from predictors.learned.length_model import LengthModel
from predictors.learned.memory import MemoryModel
from predictors.learned.relevance import RelevanceModel
from predictors.learned.text_only import TextModels
from predictors.learned.trees import TreeModel


@dataclass(frozen=True, slots=True)
class ArtifactKind:
    """One kind of artifact.

    `model` is the class that serves it. Its `load(artifact)` raises ArtifactError for arrays that do not fit, its `features`
    are the inputs with which an artifact must have been made. `training` is the module in `predictors.training` whose `train`
    makes it, imported when it is first needed; the module of that name in `benchmarks.evaluate`, if there is one,
    evaluates it. `learns_from` says which rows of a data set it needs: answers with a length, answers with a quality, or
    attempts at instances.
    """

    name: str
    model: Any
    training: str
    learns_from: Literal["lengths", "qualities", "attempts"]

    @property
    def of_prompts(self) -> bool:
        """Whether it is learned from prompts and answers, and not from attempts."""
        return self.learns_from != "attempts"

    def load(self, path: Path) -> tuple[Any, Mapping[str, Any]]:
        """(the model, the artifact's description) of a file. Raises ArtifactError for a file that is damaged or does
        not fit this version."""
        read = artifact.load(path, self.name, self.model.features)
        about = {**read.about, "artifact": read.name, "features": read.features}
        try:
            return self.model.load(read), about
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error
        # Arrays of the right shapes can still hold values that do not fit together.
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, SystemError) as error:
            raise ArtifactError(f"{path}: its arrays do not fit ({type(error).__name__})") from error


#: Every kind by its name, in the order in which records name the artifacts.
KINDS = {
    kind.name: kind
    for kind in (
        ArtifactKind("length", LengthModel, "length", "lengths"),
        ArtifactKind("latency", LatencyModel, "latency", "attempts"),
        ArtifactKind("memory", MemoryModel, "memory", "attempts"),
        ArtifactKind("relevance", RelevanceModel, "relevance", "qualities"),
        ArtifactKind("trees", TreeModel, "trees", "attempts"),
        ArtifactKind("text", TextModels, "text_only", "qualities"),
    )
}


@dataclass(frozen=True, eq=False)
class Models:
    """The trained models in use, by kind; None for a kind that serves without training. `about` has the description in
    each artifact, by kind."""

    length: LengthModel | None = None
    latency: LatencyModel | None = None
    memory: MemoryModel | None = None
    relevance: RelevanceModel | None = None
    trees: TreeModel | None = None
    text: TextModels | None = None
    about: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The artifacts in use, as records name them; "physical" without any."""
        return (
            " ".join(str(self.about[kind]["artifact"]) for kind in KINDS if kind in self.about) or "physical"
        )


#: No artifact: the physical estimate, lengths by histogram, the fleet file's qualities.
UNTRAINED = Models()


def load_models(directory: Path | None = None) -> Models:
    """The artifacts of a directory. A missing kind is loaded from the shipped artifacts; without a directory, all kinds
    are.

    Raises ArtifactError for a directory without any artifact, and for an artifact that is damaged or does not fit this
    version.
    """
    if directory is None:
        return _shipped()
    models = _load(directory, _shipped())
    if models is _shipped():
        raise ArtifactError(f"{directory}: holds no artifact (KIND{artifact.SUFFIX})")
    return models


@cache
def _shipped() -> Models:
    return _load(artifact.SHIPPED, UNTRAINED)


def _load(directory: Path, base: Models) -> Models:
    paths = {kind: artifact.path_of(directory, kind) for kind in KINDS}
    found = {kind: KINDS[kind].load(path) for kind, path in paths.items() if path.is_file()}
    if not found:
        return base
    about = {**base.about, **{kind: about for kind, (_, about) in found.items()}}
    return replace(base, about=about, **{kind: model for kind, (model, _) in found.items()})
