"""The vocabulary of placement. A cluster has pools of equal GPUs; a placement divides them into groups; each group runs
replicas of models, every replica over all GPUs of its group (AlpaServe, Li et al., OSDI '23, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: Prices are rounded, so that equal ones are equal however they add up.
_USD_DIGITS = 9


class Precision(StrEnum):
    """The format of a model's weights. `GGUF` stands for the quantised formats of llama.cpp."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT4 = "int4"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A kind of GPU. `budget_gb`: decimal gigabytes of each GPU that models may take, weights and KV cache together;
    `llamacpp_gb`: those of models in llama.cpp's formats, None if they are the same. `memory_gb`: all memory of each GPU, for
    messages; None: not known.
    `compute_capability` is NVIDIA's. `max_tensor`: how many of them can share each layer, such as those of a node;
    `max_pipeline`: the most stages of a group."""

    name: str
    budget_gb: float
    compute_capability: tuple[int, int] = (8, 0)
    usd_per_hour: float | None = None
    max_tensor: int = 4
    max_pipeline: int = 8
    llamacpp_gb: float | None = None
    memory_gb: float | None = None

    def budget_for(self, precision: Precision) -> float:
        """The gigabytes of each GPU for a model in this format."""
        if precision == Precision.GGUF and self.llamacpp_gb is not None:
            return self.llamacpp_gb
        return self.budget_gb


@dataclass(frozen=True, slots=True)
class Model:
    """What a replica needs in decimal gigabytes, over all its GPUs together. `layers` divide it over pipeline stages;
    without them the stages are equal. `alone`: no other model runs on the GPUs of its replicas, as with vLLM, which takes
    all their memory. `shapes`: kind, tensor and pipeline degree of the groups that it runs on; None: of any."""

    name: str
    weights_gb: float
    kv_gb: float = 0.0
    layers: int | None = None
    precision: Precision = Precision.FP16
    alone: bool = False
    shapes: frozenset[tuple[str, int, int]] | None = None

    @property
    def gb(self) -> float:
        """All memory of one replica."""
        return self.weights_gb + self.kv_gb


@dataclass(frozen=True, slots=True)
class Shape:
    """GPUs of one kind that run replicas together: `pipeline` stages of `tensor` GPUs each."""

    kind: GpuKind
    tensor: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        """How many GPUs a group of this shape takes."""
        return self.tensor * self.pipeline

    @property
    def usd_per_hour(self) -> float:
        """The price of its GPUs; one without a price costs nothing."""
        return round(self.gpus * (self.kind.usd_per_hour or 0.0), _USD_DIGITS)

    @property
    def known_usd_per_hour(self) -> float | None:
        """The same; None without a price."""
        return None if self.kind.usd_per_hour is None else self.usd_per_hour

    def __str__(self) -> str:
        return f"{self.kind.name} tp{self.tensor} pp{self.pipeline}"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of GPUs and the models that it runs: indices into the planner's list of models, each at most once."""

    shape: Shape
    models: tuple[int, ...] = ()

    def adding(self, model: int) -> Group:
        """This group with one more replica."""
        return Group(self.shape, tuple(sorted((*self.models, model))))

    def dropping(self, model: int) -> Group:
        """This group without its replica of a model."""
        return Group(self.shape, tuple(each for each in self.models if each != model))


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups in a fixed order: requests whose groups are equally free go to the first of them."""

    groups: tuple[Group, ...]

    @property
    def replicas(self) -> int:
        """How many replicas there are, of all models."""
        return sum(len(group.models) for group in self.groups)

    @property
    def placed(self) -> frozenset[int]:
        """The models that have a replica."""
        return frozenset(model for group in self.groups for model in group.models)

    @property
    def usd_per_hour(self) -> float:
        """The price of the GPUs that run a model."""
        return round(sum(group.shape.usd_per_hour for group in self.groups if group.models), _USD_DIGITS)

    def replacing(self, place: int, *groups: Group) -> Placement:
        """This placement with other groups for the one at `place`."""
        return Placement((*self.groups[:place], *groups, *self.groups[place + 1 :]))

    def sorted(self) -> Placement:
        """The form that equal placements share: groups by models, then by kind and shape. Two kinds may have one name."""
        return Placement(tuple(sorted(self.groups, key=_order)))

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)


def _order(group: Group) -> tuple[object, ...]:
    shape, kind = group.shape, group.shape.kind
    return group.models, kind.name, kind.usd_per_hour or 0.0, kind.max_tensor, shape.tensor, shape.pipeline


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal GPUs of a cluster, in nodes of `node_gpus`. A group lies in one node or takes whole nodes."""

    kind: GpuKind
    gpus: int
    node_gpus: int = 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """All GPUs to plan for. Groups do not mix kinds."""

    pools: tuple[Pool, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs there are, of all kinds."""
        return sum(pool.gpus for pool in self.pools)
