"""The rate of an engine that is never idle, and models that share their GPUs with none."""

from __future__ import annotations

import pytest

from backends.engine import profile
from policies.placement.engine_rate import least_busy_s, requests_per_s
from policies.placement.feasibility import obstacles
from policies.placement.packing import pack
from policies.placement.types import Cluster, GpuKind, Model, Pool


def test_a_tighter_tpot_leaves_a_smaller_rate() -> None:
    engine = profile("llama-3.1-8b@a100-80g")
    rates = [requests_per_s(engine, 1000, 150, 256, limit) for limit in (1.0, 0.05, 0.02, 0.001)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[1] > rates[2] > 0
    assert rates[3] == 0


@pytest.mark.parametrize("name", ["llama-3.1-8b@l4", "llama-3.1-70b@4xa100-80g", "qwen2.5-7b@pp2xa30"])
@pytest.mark.parametrize(("prompt", "output"), [(100, 400), (1000, 150), (8000, 20)])
def test_no_engine_serves_a_request_in_less_than_the_least_time(name: str, prompt: int, output: int) -> None:
    engine = profile(name)
    least_s = least_busy_s(engine, prompt, output, engine.max_seqs)
    rate = requests_per_s(engine, prompt, output, engine.max_seqs)
    assert 0 < least_s <= 1 / rate * (1 + 1e-9)


GPU = GpuKind("g", 10.0)


@pytest.mark.parametrize(
    ("gb", "gpus", "fits"),
    [
        ((4, 4), 1, False),  # either fits beside the other, but each takes its GPU alone
        ((4, 4), 2, True),
        ((15, 4, 4), 4, True),
        ((15, 15, 4), 4, False),
        ((35, 4), 4, False),
        ((35, 4), 8, True),
    ],
)
def test_models_alone_on_their_gpus(gb: tuple[int, ...], gpus: int, fits: bool) -> None:
    models = [Model(f"m{place}", float(size), alone=True) for place, size in enumerate(gb)]
    packed = pack(models, Cluster((Pool(GPU, gpus),)))
    assert (packed is not None) == fits
    if packed is not None:
        assert all(len(group.models) == 1 for group in packed)
        assert sum(group.shape.gpus for group in packed) <= gpus


def test_a_pool_of_single_gpus_has_pipelines_only() -> None:
    kind = GpuKind("g", 10.0, max_tensor=1)
    packed = pack([Model("m", 15.0, alone=True)], Cluster((Pool(kind, 2, 1),)))
    assert [(group.shape.tensor, group.shape.pipeline) for group in packed] == [(1, 2)]


def test_more_models_than_gpus_is_no_matter_of_memory() -> None:
    models = [Model(name, 1.0, alone=True) for name in ("a", "b", "c")]
    (found,) = obstacles(models, Cluster((Pool(GPU, 2),)))
    assert found.limit == "need GPUs for themselves each, and the cluster has 2"
    assert found.changes == ("leave out 1 x a", "1 more g")
