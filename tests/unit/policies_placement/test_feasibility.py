"""Which models do not fit, which limit that is, and what would be enough."""

from __future__ import annotations

import pytest

from policies.placement.feasibility import needed_gb, obstacles
from policies.placement.memory import Fit
from policies.placement.packing import pack
from policies.placement.types import Cluster, GpuKind, Model, Pool, Precision
from tests.unit.policies_placement.cases import LARGE, cluster

#: AlpaServe's `twentyone` set by size: GB of fp16 weights and how many.
TWENTYONE = tuple(
    Model(name, gb)
    for name, gb, count in (
        ("llama-2-7b", 13.48, 4),
        ("llama-2-13b", 26.03, 2),
        ("falcon-7b", 14.43, 3),
        ("gptj-6b", 12.1, 3),
        ("llama-2-70b", 137.95, 5),
        ("falcon-40b", 83.68, 4),
    )
    for _ in range(count)
)


def test_models_that_fit_have_no_obstacle() -> None:
    assert obstacles(LARGE, cluster()) == []
    packed = pack(LARGE, cluster())
    assert packed.placed == {0, 1, 2, 3}
    assert Fit(LARGE).valid(packed)


def test_twentyone_needs_151_gb_a_gpu() -> None:
    (found,) = obstacles(TWENTYONE, cluster())
    assert found.changes == (
        "int4 weights",
        "leave out 5 x llama-2-70b, 3 x falcon-40b",
        "23 more a100-40g",
        "GPUs with 151.3 GB usable each",
    )
    assert str(found).startswith(
        "21 models together: need 151.3 GB of each of 8 GPUs, which have 40 usable; enough"
    )


@pytest.mark.parametrize(
    ("models", "pools", "limit", "changes"),
    [
        (
            [Model("big", 90.0), Model("small", 10.0)],
            (Pool(GpuKind("a", 20.0), 4),),
            "needs 22.5 GB of each GPU in a group of 4, a has 20 usable",
            ("fp8 weights", "q8 weights", "4 more a", "GPUs with 22.5 GB usable each"),
        ),
        (
            [Model("new", 10.0, precision=Precision.BF16)],
            (Pool(GpuKind("v100", 30.0, (7, 0)), 1), Pool(GpuKind("t4", 14.0, (7, 5)), 1)),
            "bf16 needs compute capability 8.0, v100 has 7.0; bf16 needs compute capability 8.0, t4 has 7.5",
            ("fp16 weights", "fp8 weights", "q8 weights"),
        ),
    ],
)
def test_a_model_that_fits_nowhere(
    models: list[Model], pools: tuple[Pool, ...], limit: str, changes: tuple[str, ...]
) -> None:
    (found,) = obstacles(models, Cluster(pools))
    assert found.models == (models[0].name,)
    assert found.limit == limit
    assert found.changes == changes


def test_each_told_change_is_enough_and_less_is_not() -> None:
    assert pack(TWENTYONE, cluster(8 + 23)) is not None
    assert pack(TWENTYONE, cluster(8 + 22)) is None
    assert pack(TWENTYONE, cluster(8, GpuKind("x", 151.3))) is not None
    assert pack(TWENTYONE, cluster(8, GpuKind("x", 151.2))) is None


def test_a_model_runs_on_the_kind_that_has_its_format() -> None:
    pools = (Pool(GpuKind("v100", 100.0, (7, 0)), 1), Pool(GpuKind("l4", 20.0, (8, 9)), 1))
    packed = pack([Model("new", 15.0, precision=Precision.BF16)], Cluster(pools))
    assert [(group.shape.kind.name, group.models) for group in packed] == [("v100", ()), ("l4", (0,))]


def test_needed_gb_of_unlike_gpus_is_that_of_the_smaller_ones() -> None:
    pools = (Pool(GpuKind("a", 10.0), 1), Pool(GpuKind("b", 20.0), 1))
    # one model each: 30 GB on b needs a factor of 1.5
    assert needed_gb([Model("m", 30.0), Model("n", 15.0)], Cluster(pools)) == pytest.approx(15.0, rel=1e-3)


def test_no_memory_is_enough_for_a_format_that_does_not_run() -> None:
    with pytest.raises(ValueError, match="runs on none"):
        needed_gb([Model("m", 1.0, precision=Precision.FP8)], cluster(1, GpuKind("v100", 30.0, (7, 0))))
