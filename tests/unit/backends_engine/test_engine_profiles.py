"""Profiles: there, finite, ordered as the hardware is, and near what is publicly known."""

from __future__ import annotations

import dataclasses
import math

import pytest

from backends.engine import Engine, UnknownProfile, names, profile
from backends.engine.hardware import HARDWARE
from backends.engine.models import MODELS
from backends.engine.profiles import (
    budget_bytes,
    memory_bytes,
    model_of,
    name_of,
    quantization_of,
    weights_bytes,
)


def decode_s(name: str, batch: int, context: int = 1000) -> float:
    return profile(name).step_s(0, batch, batch * context)


@pytest.mark.parametrize("model", MODELS)
def test_every_profile_is_sane(model: str) -> None:
    found = [name for name in names() if model_of(name).name == model]
    assert found
    for name in found:
        one = profile(name)
        assert one.name == name
        assert one.source
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            if isinstance(value, (int, float)):
                assert math.isfinite(value)
                assert value > 0 or field.name == "per_seq_s", field.name  # of no published table
        assert one.kv_capacity_tokens >= 4096
        # The slowest reads 140 GB of weights at 245 GB/s.
        assert 1e-3 < one.step_s(0, 1, 100) < 0.6
        assert one.step_s(0, 1, 100) < one.step_s(0, 32, 3200) < one.step_s(256, 32, 3200, 10_000)
        assert weights_bytes(name) < memory_bytes(name)
        Engine(one)


def test_the_fleet_that_users_expect_is_there() -> None:
    models = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b")
    gpus = ("a100-80g", "h100-80g", "l4", "a30", "a40", "v100-32g", "rtx-4090")
    expected = {f"{model}@{gpu}" for model in models for gpu in gpus}
    expected |= {
        "llama-3.2-1b@t4",
        "llama-3.1-70b@4xa100-80g",
        "llama-3.1-70b@2xh100-80g",
        "qwen2.5-72b@4xa100-80g",
        "qwen2.5-7b-q4@rtx-4090",
        "llama-3.1-8b-q4@l4",
        "llama-3.1-8b-q8@t4",
        "llama-3.1-70b-q4@a40",
        "qwen2.5-14b@a40",
        "qwen2.5-32b@a100-80g",
    }
    assert expected <= set(names())
    assert list(names()) == sorted(set(names()))


def test_weights_that_do_not_fit_have_no_profile() -> None:
    for name in ("llama-3.1-70b@a100-80g", "llama-3.1-8b@t4", "llama-3.1-70b-q4@rtx-4090"):
        assert name not in names()


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(KeyError) as caught:
        profile("llama-3.1-8b@a100")
    assert "llama-3.1-8b@a100-80g" in str(caught.value)
    with pytest.raises(UnknownProfile, match="unknown profile"):
        profile("?")


def test_llama_8b_on_the_a100_is_near_public_measurements() -> None:
    a100 = profile("llama-3.1-8b@a100-80g")
    assert 0.012 < decode_s(a100.name, 1) < 0.015
    assert 0.016 < decode_s(a100.name, 64) < 0.025
    # AIBrix measured 1.87 s to the first of 21,073 tokens and 14.15 ms for each token after.
    assert a100.prefill_s(21_073) == pytest.approx(1.87, rel=0.1)
    assert a100.step_s(0, 1, 21_123) == pytest.approx(0.01415, rel=0.02)
    # vLLM reports a KV cache of somewhat over 400,000 tokens there.
    assert 400_000 < a100.kv_capacity_tokens < 470_000


def test_llama_cpp_on_the_4090_is_near_llama_bench() -> None:
    name = "llama-3.1-8b-q4@rtx-4090"
    assert decode_s(name, 1, 256) == pytest.approx(1 / 130.58, rel=0.03)
    assert 512 / profile(name).prefill_s(512) == pytest.approx(7139, rel=0.1)


def test_bigger_models_are_slower() -> None:
    sizes = ("llama-3.2-1b", "llama-3.2-3b", "qwen2.5-7b", "llama-3.1-8b", "qwen2.5-14b", "qwen2.5-32b")
    times = [decode_s(f"{model}@h100-80g", 1) for model in sizes]
    assert times == sorted(times)
    prefills = [profile(f"{model}@h100-80g").prefill_s(1000) for model in sizes]
    assert prefills == sorted(prefills)


def test_faster_hardware_is_faster() -> None:
    by_bandwidth = ("h100-80g", "a100-80g", "rtx-4090", "a30", "a40", "l4")
    times = [decode_s(f"llama-3.1-8b@{gpu}", 1) for gpu in by_bandwidth]
    assert times == sorted(times)
    by_flops = ("h100-80g", "a100-80g", "v100-32g", "l4", "t4")
    prefills = [profile(f"llama-3.2-1b@{gpu}").prefill_s(2000) for gpu in by_flops]
    assert prefills == sorted(prefills)


def test_more_gpus_are_faster_and_hold_more() -> None:
    two, four, eight = (profile(f"llama-3.1-70b@{gpus}xa100-80g") for gpus in (2, 4, 8))
    assert two.step_s(0, 8, 8000) > four.step_s(0, 8, 8000) > eight.step_s(0, 8, 8000)
    assert two.kv_capacity_tokens < four.kv_capacity_tokens < eight.kv_capacity_tokens
    # Communication keeps it from halving.
    assert four.step_s(0, 8, 8000) > two.step_s(0, 8, 8000) / 2


def test_fewer_bits_are_faster_to_read() -> None:
    q4, q8 = (decode_s(f"llama-3.1-8b-{bits}@rtx-4090", 1) for bits in ("q4", "q8"))
    assert q4 < q8 < decode_s("llama-3.1-8b@rtx-4090", 1)


def test_fp8_weights_are_half_as_large_and_compute_faster_where_the_gpu_can() -> None:
    assert (
        decode_s("llama-3.1-8b@l4", 1) / 2
        < decode_s("llama-3.1-8b-fp8@l4", 1)
        < decode_s("llama-3.1-8b@l4", 1)
    )
    for gpu, gain in (("l4", 1.6), ("h100-80g", 1.6), ("a100-80g", 1.0)):
        fp8, sixteen = profile(f"llama-3.1-8b-fp8@{gpu}"), profile(f"llama-3.1-8b@{gpu}")
        assert sixteen.per_token_s / fp8.per_token_s == pytest.approx(gain)
        assert sixteen.floor_s / fp8.floor_s == pytest.approx(2)
        assert sixteen.kv_capacity_tokens < fp8.kv_capacity_tokens
    # Llama 3.1 8B: 1.05e9 weights of the embedding and the output layer stay in 16 bits.
    assert weights_bytes("llama-3.1-8b-fp8@l4") == pytest.approx(9.08e9, rel=0.001)
    assert quantization_of("llama-3.1-8b-fp8@l4") is None


def test_fp8_needs_a_gpu_that_runs_it() -> None:
    assert "llama-3.2-1b@v100-32g" in names()
    assert not [name for name in names() if "-fp8@" in name and name.endswith("v100-32g")]


def test_a_pipeline_divides_the_work_for_a_token_and_adds_hops() -> None:
    one, two = profile("llama-3.1-8b@a100-80g"), profile("llama-3.1-8b@pp2xa100-80g")
    # 64 sequences in two microbatches read the weights as often as two steps of one GPU, with half of them each.
    assert two.floor_s == one.floor_s
    assert two.per_token_s == pytest.approx(one.per_token_s / 2)
    assert two.per_kv_token_s == pytest.approx(one.per_kv_token_s / 2)
    assert two.overhead_s == pytest.approx(one.overhead_s + 100e-6)
    assert two.per_token_extra_s == pytest.approx((one.per_token_extra_s + 2 * 4096 / 1.25e9) / 2)
    assert two.max_batched_tokens == 2 * one.max_batched_tokens
    # Half of the weights on each GPU: both hold twice the KV cache and what the weights leave.
    assert two.kv_capacity_tokens > 2 * one.kv_capacity_tokens


def test_layers_that_do_not_divide_count_as_the_largest_stage() -> None:
    # 28 layers in 8 stages: the largest has 4, and not 3.5.
    profile_ = profile("qwen2.5-7b@pp8xa30")
    free = budget_bytes(HARDWARE["a30"]) - 2 * MODELS["qwen2.5-7b"].params * 4 / 28
    assert profile_.kv_capacity_tokens == int(free / (MODELS["qwen2.5-7b"].kv_bytes_per_token() * 4 / 28))


@pytest.mark.parametrize(
    ("degrees", "name"),
    [((1, 1), "m@g"), ((2, 1), "m@2xg"), ((1, 4), "m@pp4xg"), ((2, 4), "m@pp4x2xg")],
)
def test_names(degrees: tuple[int, int], name: str) -> None:
    assert name_of("m", "g", *degrees) == name


def test_facts_of_a_name() -> None:
    assert model_of("llama-3.1-70b-q4@a100-80g") is MODELS["llama-3.1-70b"]
    assert quantization_of("llama-3.1-70b-q4@a100-80g") == "Q4_K_M"
    assert quantization_of("llama-3.1-70b@4xa100-80g") is None
    assert weights_bytes("llama-3.1-8b@l4") == pytest.approx(16.06e9, rel=0.001)
    assert memory_bytes("llama-3.1-70b@4xa100-80g") == 4 * HARDWARE["a100-80g"].memory_bytes
    assert memory_bytes("llama-3.1-70b@pp2x4xa100-80g") == 8 * HARDWARE["a100-80g"].memory_bytes
    assert model_of("llama-3.1-70b-fp8@pp2xh100-80g") is MODELS["llama-3.1-70b"]
    with pytest.raises(UnknownProfile):
        weights_bytes("llama-3.1-8b@nowhere")


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_shapes_add_up_to_the_published_size(model: object) -> None:
    spec = MODELS[getattr(model, "name", "")]
    embeddings = spec.head_params * (1 if spec.tied else 2)
    assert spec.layers * spec.layer_params() + embeddings == pytest.approx(spec.params, rel=0.001)
