"""Cluster and models as the planners see them, and back: groups as engine profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import floor

from backends.engine import profiles
from backends.engine.hardware import HARDWARE, QUANTIZATIONS
from backends.engine.models import MODELS
from backends.engine.weights import suffix_of
from benchmarks.planning.files import ClusterConfig, PlannedModelConfig, PoolConfig
from benchmarks.planning.unlike import UnlikeGroup, profiled, unlike_group
from policies.placement.candidates import every_shape
from policies.placement.hardware_support import support
from policies.placement.types import Cluster, GpuKind, Group, Model, Pool, Precision, Shape
from router.core.profile import EngineProfile

_GB = 1e9


@dataclass(frozen=True)
class PlanningProblem:
    """`longest_tokens`: prompt and answer together of the longest request of each model, by name; the KV cache holds it.
    Every model takes its GPUs for itself."""

    cluster_config: ClusterConfig
    model_configs: tuple[PlannedModelConfig, ...]
    longest_tokens: Mapping[str, int]
    unlike: tuple[UnlikeGroup, ...] = ()

    @cached_property
    def cluster(self) -> Cluster:
        """The pools; each group of unlike GPUs is one GPU of a pool of its own, and its GPUs are in no other."""
        pools = [
            Pool(gpu_kind(pool), left, pool.node_gpus)
            for pool, left in zip(self.cluster_config.pools, self.gpus_left, strict=True)
            if left
        ]
        return Cluster((*pools, *(Pool(self.kind_of(group), 1, 1) for group in self.unlike)))

    @property
    def gpus_left(self) -> list[int]:
        """Each pool's GPUs beside groups of unlike GPUs: all where these take none, else in whole nodes if they are several."""
        found = []
        for place, pool in enumerate(self.cluster_config.pools):
            taken = sum(group.gpus_of(place) for group in self.unlike)
            left = pool.gpus - taken
            found.append(left if not taken or left <= pool.node_gpus else left - left % pool.node_gpus)
        return found

    def with_unlike_groups(self) -> PlanningProblem:
        """This problem with a group of unlike GPUs for each model that fits no equal ones, where one holds it."""
        problem = self
        for place, config in enumerate(self.model_configs):
            precision = self.models[place].precision
            if is_gguf(config) or any(
                self.profile(place, shape) is not None
                for pool in self.cluster.pools
                if support(pool.kind, precision) is not None
                for shape in every_shape(pool)
            ):
                continue
            left = [
                pool.model_copy(update={"gpus": gpus if support(gpu_kind(pool), precision) else 0})
                for pool, gpus in zip(self.cluster_config.pools, problem.gpus_left, strict=True)
            ]
            group = unlike_group(left, config, suffix_of(config.weights), self._held_tokens(config))
            if group is not None:
                problem = replace(problem, unlike=(*problem.unlike, group))
        return problem

    def kind_of(self, group: UnlikeGroup) -> GpuKind:
        """A group of unlike GPUs as one GPU."""
        prices = [
            stage.gpus * price
            for stage, place in zip(group.stages, group.pools, strict=True)
            if (price := self.cluster_config.pools[place].usd_per_hour) is not None
        ]
        return GpuKind(
            group.name,
            sum(stage.gpus * profiles.budget_bytes(stage.hardware) for stage in group.stages) / _GB,
            min(stage.hardware.compute_capability for stage in group.stages),
            sum(prices) if prices else None,
            max_tensor=1,
        )

    def unlike_of(self, group: Group) -> UnlikeGroup | None:
        """The unlike GPUs of a group; None if its GPUs are equal. Where two have the same stages, its model's own."""
        names = [self.model_configs[model].name for model in group.models]
        same = [each for each in self.unlike if self.kind_of(each) == group.shape.kind]
        return min(same, key=lambda each: each.model not in names, default=None)

    def _held_tokens(self, config: PlannedModelConfig) -> int:
        return max(profiles.MIN_CONTEXT_TOKENS, self.longest_tokens.get(config.name, 0))

    @cached_property
    def models(self) -> tuple[Model, ...]:
        return tuple(self._model(config) for config in self.model_configs)

    def profile_name(self, model: int, shape: Shape) -> str:
        config = self.model_configs[model]
        return profiles.name_of(
            profiled(config.name, suffix_of(config.weights)), shape.kind.name, shape.tensor, shape.pipeline
        )

    def profile(self, model: int, shape: Shape) -> EngineProfile | None:
        """None where there is none."""
        return profiles.find(self.profile_name(model, shape))

    def seats(self, model: int, profile: EngineProfile) -> int:
        """The most sequences that decode at once."""
        return profile.seats(fixed_slots=is_gguf(self.model_configs[model]))

    def _model(self, config: PlannedModelConfig) -> Model:
        spec = MODELS[config.name]
        held = self._held_tokens(config)
        gguf = is_gguf(config)
        shapes = [
            (tensor, pipeline)
            for tensor, pipeline in product(profiles.TENSOR_DEGREES, profiles.PIPELINE_DEGREES)
            if tensor * pipeline <= (1 if gguf else profiles.MOST_GPUS) and spec.divides(tensor)
        ]
        return Model(
            config.name,
            weights_gb=profiles.bytes_of(spec, suffix_of(config.weights)) / _GB,
            kv_gb=spec.kv_bytes_per_token() * held / _GB,
            layers=spec.layers,
            precision=Precision.GGUF if gguf else Precision(config.weights),
            alone=True,
            shapes=frozenset(
                [(pool.gpu, *shape) for pool in self.cluster_config.pools for shape in shapes]
                + [(group.name, 1, 1) for group in self.unlike if group.model == config.name]
            ),
        )


def is_gguf(config: PlannedModelConfig) -> bool:
    """Whether Ollama serves it."""
    return config.weights in QUANTIZATIONS


def gpu_kind(pool: PoolConfig) -> GpuKind:
    """The GPUs of a pool as the planners see them, with the largest degrees that have engine profiles."""
    hardware = HARDWARE[pool.gpu]
    return GpuKind(
        pool.gpu,
        _budget_gb(profiles.budget_bytes(hardware)),
        hardware.compute_capability,
        pool.usd_per_hour,
        max_tensor=min(pool.node_gpus, max(profiles.TENSOR_DEGREES)),
        max_pipeline=max(profiles.PIPELINE_DEGREES),
        llamacpp_gb=_budget_gb(profiles.llamacpp_budget_bytes(hardware)),
        memory_gb=hardware.memory_bytes / _GB,
    )


def _budget_gb(budget_bytes: float) -> float:
    """Rounded down to 0.1 GB."""
    return floor(10 * budget_bytes / _GB) / 10
