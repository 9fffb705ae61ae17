"""The published cases of AlpaServe and AlpaServe*: `alpaserve_cases.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from benchmarks.workloads.format import checked, reading
from policies.placement.types import GpuKind, Group, Model, Placement, Shape

FILE = "alpaserve_cases.json"


class PublishedGroup(BaseModel):
    """Tensor degree, pipeline degree and the places of the models in their set."""

    tensor: int = Field(alias="op")
    pipeline: int = Field(alias="pp")
    models: tuple[int, ...]


class Case(BaseModel):
    """One published placement. `gap_s`: mean time between requests, which is how the published `rate` acts. `groups`: none
    if it was found infeasible. `number`, `models` and `output_tokens` come from the rest of the file."""

    algorithm: str
    model_set: str
    gap_s: float = Field(alias="rate")
    trace: str
    slo_scale: float
    feasible: bool
    groups: tuple[PublishedGroup, ...]
    gpus: int = Field(alias="devices")
    number: int = 0
    models: tuple[Model, ...] = ()
    output_tokens: int = 0

    @property
    def star(self) -> bool:
        """Whether it is of AlpaServe*."""
        return self.algorithm == "AlpaServe*"

    @property
    def workload(self) -> tuple[str, float, float]:
        """Cases of one workload are planned for the same requests."""
        return self.model_set, self.gap_s, self.slo_scale

    def published(self, kind: GpuKind) -> Placement:
        """The published placement on GPUs of a kind."""
        groups = (Group(Shape(kind, each.tensor, each.pipeline), each.models) for each in self.groups)
        return Placement(tuple(groups)).sorted()


class _Model(BaseModel):
    name: str
    weights_gb_fp16: float


class _File(BaseModel):
    output_length: int
    model_sets: dict[str, list[_Model]]
    cases: list[Case]


def read(data: Path) -> list[Case]:
    """All cases, as published. Raises WorkloadError."""
    path = data / FILE
    with reading(path):
        content = checked(_File.model_validate_json, path.read_bytes(), str(path))
    sets = {
        name: tuple(Model(each.name, each.weights_gb_fp16) for each in models)
        for name, models in content.model_sets.items()
    }
    return [
        case.model_copy(
            update={
                "number": number,
                "models": sets[case.model_set],
                "output_tokens": content.output_length,
            }
        )
        for number, case in enumerate(content.cases)
    ]
