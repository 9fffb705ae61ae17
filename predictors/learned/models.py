"""The trained models that serve: of a directory of artifacts, each kind that it lacks from the shipped defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictors.learned import artifact
from predictors.learned.artifact import Artifact, ArtifactError

if TYPE_CHECKING:
    from predictors.learned.latency.model import LatencyModel
    from predictors.learned.length_model import LengthModel
    from predictors.learned.memory import MemoryModel
    from predictors.learned.relevance import RelevanceModel
    from predictors.learned.text_only import TextModels
    from predictors.learned.trees import TreeModel

KINDS = ("length", "latency", "memory", "relevance", "trees", "text")


@dataclass(frozen=True, slots=True)
class Models:
    """What was trained; None where a plain fallback serves. `about` tells, by kind, the artifact's own
    description."""

    length: LengthModel | None = None
    latency: LatencyModel | None = None
    memory: MemoryModel | None = None
    relevance: RelevanceModel | None = None
    trees: TreeModel | None = None
    text: TextModels | None = None
    about: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The artifacts in use, as records name them; "physical" without any."""
        return (
            " ".join(str(self.about[kind]["artifact"]) for kind in KINDS if kind in self.about) or "physical"
        )


#: Nothing trained: the physical estimate, lengths by histogram, the fleet file's qualities.
UNTRAINED = Models()


def load_models(directory: Path | None = None) -> Models:
    """The artifacts of a directory; a kind that it does not have is the shipped one (None: all are).

    Raises ArtifactError for a directory that holds no artifact, and for an artifact that is damaged or does
    not fit this version.
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
    models = base
    for kind in KINDS:
        path = artifact.path_of(directory, kind)
        if path.is_file():
            read = artifact.load(path, kind)
            about = {**models.about, kind: {**read.about, "artifact": read.name, "features": read.features}}
            try:
                models = replace(models, about=about, **{kind: _model(kind, read)})
            except ArtifactError as error:
                raise ArtifactError(f"{path}: {error}") from error
            # Arrays of the right shapes can still not be what they should be.
            except (ValueError, IndexError, KeyError, TypeError, OverflowError, SystemError) as error:
                raise ArtifactError(f"{path}: its arrays do not fit ({type(error).__name__})") from error
    return models


def _model(kind: str, read: Artifact) -> Any:
    if kind == "length":
        from predictors.learned.length_model import LengthModel

        return LengthModel.load(read)
    if kind == "latency":
        from predictors.learned.latency.model import LatencyModel

        return LatencyModel.load(read)
    if kind == "memory":
        from predictors.learned.memory import MemoryModel

        return MemoryModel.load(read)
    if kind == "text":
        from predictors.learned.text_only import TextModels

        return TextModels.load(read)
    if kind == "trees":
        from predictors.learned.trees import TreeModel

        return TreeModel.load(read)
    from predictors.learned.relevance import RelevanceModel

    return RelevanceModel.load(read)
