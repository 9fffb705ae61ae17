"""The files of a plan: the cluster, and the models with the format of their weights. Both are read like a fleet file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from backends.engine.hardware import HARDWARE
from backends.engine.models import MODELS
from backends.engine.profiles import TENSOR_DEGREES
from backends.engine.weights import weights_named
from router.config import ConfigError, Problem
from router.config.document import parse
from router.config.fields import Count, ModelName, NotNegative, Section
from router.config.load import in_words, text_of
from router.config.models import ModelConfig

_WIDEST = max(TENSOR_DEGREES)
#: A format of weights by its canonical name; the files may have any usual one.
Weights = Annotated[str, AfterValidator(weights_named)]


def _profiled(names: Mapping[str, object]) -> AfterValidator:
    """One of the names that have engine profiles."""

    def check(name: str) -> str:
        if name not in names:
            known = ", ".join(names)
            raise PydanticCustomError("name", "has no engine profiles; known: {known}", {"known": known})
        return name

    return AfterValidator(check)


class PoolConfig(Section):
    """Equal GPUs, in nodes of `node_gpus` of them. `usd_per_hour` is the price of one GPU."""

    gpu: Annotated[str, _profiled(HARDWARE)]
    gpus: Count
    node_gpus: Literal[1, 2, 4, 8, 16] = 8
    usd_per_hour: NotNegative | None = None


class ClusterConfig(Section):
    """All GPUs to plan for."""

    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fit_together(self) -> ClusterConfig:
        if len({each.usd_per_hour is None for each in self.pools}) > 1:
            raise PydanticCustomError("prices", "usd_per_hour: give it for all pools, or for none")
        # A group shares each layer between at most so many GPUs: to the planner larger nodes are alike.
        kinds = [(each.gpu, min(each.node_gpus, _WIDEST), each.usd_per_hour) for each in self.pools]
        if len(set(kinds)) < len(kinds):
            raise PydanticCustomError(
                "twice",
                "two pools differ in their number of GPUs only (nodes of {widest} and more are alike): merge them into one",
                {"widest": _WIDEST},
            )
        return self

    @property
    def has_prices(self) -> bool:
        return self.pools[0].usd_per_hour is not None


class PlannedModelConfig(ModelConfig):
    """A model of the fleet file, with the format of its weights."""

    name: Annotated[ModelName, _profiled(MODELS)]
    weights: Weights = "fp16"

    def fleet_entry(self) -> ModelConfig:
        """The model as the fleet file has it."""
        return ModelConfig.model_validate(self.model_dump(exclude_unset=True, exclude={"weights"}))


class ModelsConfig(Section):
    """The models to place. Each gets an instance at least."""

    models: Annotated[tuple[PlannedModelConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _different(self) -> ModelsConfig:
        names = [each.name for each in self.models]
        if len(set(names)) < len(names):
            raise PydanticCustomError("twice", "two models have the same name")
        return self


Content = TypeVar("Content", bound=Section)


def read(path: Path, kind: type[Content]) -> Content:
    """Raises ConfigError with all problems and their lines."""
    source = str(path)
    document = parse(text_of(path), source)
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(
            source,
            [Problem(at, reason, document.line(at)) for at, reason in in_words(error.errors(), kind)],
        ) from None
