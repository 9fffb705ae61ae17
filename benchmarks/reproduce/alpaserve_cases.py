"""The published cases of AlpaServe and AlpaServe*: `alpaserve_cases.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ValidationError

from benchmarks.checks import problem
from benchmarks.reproduce import ReproductionError
from policies.placement.types import GpuKind, Group, Model, Placement, Shape

FILE = "alpaserve_cases.json"


class _Group(BaseModel):
    op: int
    pp: int
    models: list[int]


class _Case(BaseModel):
    algorithm: str
    model_set: str
    rate: float
    trace: str
    slo_scale: float
    feasible: bool
    groups: list[_Group]
    devices: int


class _Model(BaseModel):
    name: str
    weights_gb_fp16: float


class _File(BaseModel):
    output_length: int
    model_sets: dict[str, list[_Model]]
    cases: list[_Case]


@dataclass(frozen=True, slots=True)
class Case:
    """One published placement. `gap_s`: mean time between requests, which is how the published `rate` acts. `groups`:
    tensor degree, pipeline degree and models of each; none if it was found infeasible."""

    number: int
    algorithm: str
    model_set: str
    models: tuple[Model, ...]
    gap_s: float
    trace: str
    slo_scale: float
    gpus: int
    output_tokens: int
    groups: tuple[tuple[int, int, tuple[int, ...]], ...]

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
        groups = (Group(Shape(kind, tensor, pipeline), models) for tensor, pipeline, models in self.groups)
        return Placement(tuple(groups)).sorted()


def read(data: Path) -> list[Case]:
    """All cases, as published. Raises ReproductionError."""
    path = data / FILE
    try:
        content = _File.model_validate(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        raise ReproductionError(f"{path}: no such file") from None
    except orjson.JSONDecodeError as error:
        raise ReproductionError(f"{path}: not valid JSON ({error})") from None
    except ValidationError as error:
        raise ReproductionError(f"{path}: {problem(error)}") from None
    sets = {
        name: tuple(Model(each.name, each.weights_gb_fp16) for each in models)
        for name, models in content.model_sets.items()
    }
    return [_case(number, case, sets, content.output_length) for number, case in enumerate(content.cases)]


def _case(number: int, case: _Case, sets: dict[str, tuple[Model, ...]], output_tokens: int) -> Case:
    return Case(
        number=number,
        algorithm=case.algorithm,
        model_set=case.model_set,
        models=sets[case.model_set],
        gap_s=case.rate,
        trace=case.trace,
        slo_scale=case.slo_scale,
        gpus=case.devices,
        output_tokens=output_tokens,
        groups=tuple((group.op, group.pp, tuple(group.models)) for group in case.groups),
    )
