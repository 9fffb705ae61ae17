"""Memory of each GPU, and what runs where."""

from __future__ import annotations

from typing import Any

import pytest

from backends.engine.hardware import HARDWARE
from policies.placement.hardware_support import missing, support
from policies.placement.memory import Fit, gb_per_gpu
from policies.placement.types import GpuKind, Group, Model, Placement, Precision, Shape
from tests.unit.policies_placement.cases import A100, LARGE, groups


@pytest.mark.parametrize(
    ("model", "tensor", "pipeline", "gb"),
    [
        (Model("m", 80.0), 4, 2, 10.0),
        (Model("m", 70.0, kv_gb=10.0), 4, 2, 10.0),
        (Model("m", 80.0, layers=80), 2, 4, 10.0),
        (Model("m", 80.0, layers=5), 1, 2, 48.0),  # three of five layers on the first stage
    ],
)
def test_gb_per_gpu(model: Model, tensor: int, pipeline: int, gb: float) -> None:
    assert gb_per_gpu(model, Shape(A100, tensor, pipeline)) == pytest.approx(gb)


def test_equal_prices_are_equal_however_they_add_up() -> None:
    cheap, dear, whole = (
        GpuKind(name, 24.0, usd_per_hour=usd) for name, usd in zip("abc", (0.35, 0.7, 5.6), strict=True)
    )
    one = Placement((Group(Shape(whole), (0,)), Group(Shape(dear), (0,))))
    two = Placement((Group(Shape(whole), (0,)), Group(Shape(cheap), (0,)), Group(Shape(cheap), (0,))))
    assert one.usd_per_hour == two.usd_per_hour == 6.3
    assert Shape(dear, 1, 3).usd_per_hour == 2.1


@pytest.mark.parametrize("other", [{"usd_per_hour": 0.7}, {"max_tensor": 2}])
def test_equal_placements_share_a_form_where_two_kinds_have_one_name(other: dict[str, Any]) -> None:
    groups = [Group(Shape(GpuKind("a", 24.0, **fields)), (0,)) for fields in ({"usd_per_hour": 0.5}, other)]
    assert Placement(tuple(groups)).sorted() == Placement(tuple(reversed(groups))).sorted()


@pytest.mark.parametrize(
    ("tensor", "pipeline", "there", "added", "allowed"),
    [
        (4, 2, (1, 2, 3), 0, True),  # 39.85 of 40 GB
        (4, 1, (1,), 3, False),  # 41.84
        (4, 1, (1,), 1, False),  # it is there already
        (1, 1, (), 2, True),
        (1, 2, (), 1, False),  # 41.84
    ],
)
def test_what_a_group_allows(
    tensor: int, pipeline: int, there: tuple[int, ...], added: int, *, allowed: bool
) -> None:
    fit = Fit(LARGE)
    assert fit.allows(Group(Shape(A100, tensor, pipeline), there), added) is allowed
    assert not Fit(LARGE, frozenset()).allows(Group(Shape(A100, tensor, pipeline), there), added)


def test_more_stages_than_layers_do_not_run() -> None:
    assert not Fit([Model("m", 1.0, layers=2)]).holds(Shape(A100, 1, 4), [0])


def test_published_placements_are_valid() -> None:
    fit = Fit(LARGE)
    assert fit.valid(groups((4, 1, [1, 2]), (4, 1, [2, 3])))
    assert not fit.valid(groups((4, 1, [0, 1]), (4, 1, [])))
    assert not fit.valid(groups((4, 1, [2, 2]), (4, 1, [])))


#: Compute capabilities of the kinds that have engine profiles, and of one that has none.
COMPUTE_CAPABILITIES = {
    name.partition("-")[0]: spec.compute_capability for name, spec in HARDWARE.items()
} | {"p100": (6, 0)}
#: Whether fp16, bf16, fp8 and GGUF run at all, by the kind of GPU.
RUNS = {"p100": "---g", "v100": "f--g", "t4": "f-8g", "a100": "fb8g", "l4": "fb8g", "h100": "fb8g"}


@pytest.mark.parametrize("name", RUNS)
def test_what_runs_where(name: str) -> None:
    kind = GpuKind(name, 10.0, COMPUTE_CAPABILITIES[name])
    formats = (Precision.FP16, Precision.BF16, Precision.FP8, Precision.GGUF)
    runs = "".join(
        letter if support(kind, precision) else "-" for letter, precision in zip("fb8g", formats, strict=True)
    )
    assert runs == RUNS[name]


@pytest.mark.parametrize(
    ("name", "precision", "note"),
    [
        ("v100", Precision.FP16, "vLLM built for CUDA 12"),
        ("t4", Precision.FP8, "8-bit weights, 16-bit activations"),
        ("a100", Precision.FP8, "8-bit weights, 16-bit activations"),
        ("l4", Precision.FP8, ""),
        ("h100", Precision.FP8, ""),
    ],
)
def test_how_it_runs(name: str, precision: Precision, note: str) -> None:
    assert support(GpuKind(name, 10.0, COMPUTE_CAPABILITIES[name]), precision).note == note


def test_why_it_does_not_run() -> None:
    v100 = GpuKind("v100", 30.0, (7, 0))
    assert missing(v100, Precision.BF16) == "bf16 needs compute capability 8.0, v100 has 7.0"
