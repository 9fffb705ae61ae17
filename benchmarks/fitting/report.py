"""Fitted constants beside the committed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.engine import profile
from backends.engine.hardware import (
    ATTENTION_MEMORY_SHARE,
    ATTENTION_S,
    HARDWARE,
    HOST_S,
    LLAMACPP_ATTENTION_SHARE,
    LLAMACPP_LAYER_S,
    NVLINK_A100,
    NVLINK_H100,
    PCIE_HOST,
    PCIE_PEER,
    QUANTIZATIONS,
)
from backends.engine.models import MODELS
from benchmarks.fitting import fits, tables
from benchmarks.fitting.fits import Errors

#: The Helix machines have A100s with 40 GB: less bandwidth than those with 80 GB (data sheet).
A100_40G_BYTES_PER_S = 1.555e12
VIDUR_GPUS = {"a100": "a100-80g", "h100": "h100-80g", "a40": "a40", "a30": "a30"}
HELIX_GPUS = {"L4": "l4", "T4": "t4", "V100": "v100-32g"}
HELIX_MODELS = tuple(tables.HELIX_LAYER_PARAMS)
# Qwen2-7B, the model of the attention table: bytes of keys and values, and operations for a token pair, of a
# layer. DistCA's has 32 heads.
QWEN_KV_BYTES, QWEN_PAIR_FLOPS, DISTCA_PAIR_FLOPS = 2 * 4 * 128 * 2, 4 * 28 * 128, 4 * 32 * 128


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """Tokens per second of Llama 3 8B by llama-bench (XiongjieDai/GPU-Benchmarks-on-LLM-Inference 00dd2bd):
    512 tokens generated and prompted with 16-bit and with Q4_K_M weights, 4,096 generated with Q4_K_M."""

    tg_f16: float
    pp_f16: float
    tg_q4: float
    pp_q4: float
    tg4096_q4: float


RTX_4090 = LlamaBench(54.84, 9382.0, 130.58, 7138.99, 119.44)
RTX_3090 = LlamaBench(47.40, 4444.65, 115.42, 4030.40, 97.31)
# Llama 2 7B, 16-bit: 6.48e9 weights in layers, 0.13e9 in the output layer. A100 and H100 PCIe generating
# (the same tables), A100 prompting (llama.cpp pull request 6017), with the bandwidth of those PCIe cards.
LLAMA2_7B_LAYERS, LLAMA2_7B_HEAD = 6.48e9, 0.13e9
A100_PCIE_TG, A100_PCIE_PP, A100_PCIE_BYTES_PER_S = 73.83, 8381.0, 1.935e12
H100_PCIE_TG, H100_PCIE_BYTES_PER_S = 83.32, 2.0e12


@dataclass(frozen=True, slots=True)
class Row:
    """One constant. `errors` are those of its fit over its table, None for a ratio of two figures."""

    name: str
    fitted: float
    committed: float
    errors: Errors | None = None

    @property
    def difference(self) -> float:
        """Relative difference of fitted and committed."""
        return abs(self.fitted / self.committed - 1)


def constants(directory: Path) -> Iterator[Row]:
    """All fitted constants. Raises OSError when a table is missing."""
    yield from _vidur(directory)
    yield from _attention(directory)
    yield from _links(directory)
    yield from _helix(directory)
    yield from _llamacpp()
    yield from _host(directory)


def checks(directory: Path) -> Iterator[Row]:
    """Whole profiles against measurements that no constant was fitted to (fitted: measured)."""
    prompt_tokens, ttft_s, _ = tables.aibrix_cold(directory)
    a100 = profile("llama-3.1-8b@a100-80g")
    predicted = a100.prefill_s(int(prompt_tokens))
    yield Row(
        f"TTFT of {prompt_tokens:.0f} tokens, llama-3.1-8b@a100-80g, s",
        float(np.median(ttft_s)),
        predicted,
        Errors.of(np.full_like(ttft_s, predicted), ttft_s),
    )
    ratios = tables.v100_ratios(directory)
    v100 = profile("llama-3.1-8b@v100-32g")
    yield Row(
        "A100 over V100 throughput, prefill for the greater part",
        float(np.median(ratios)),
        v100.prefill_s(256) / a100.prefill_s(256),
    )


def _vidur(directory: Path) -> Iterator[Row]:
    for gpu, times in sorted(tables.vidur_layers(directory).items()):
        spec = HARDWARE[VIDUR_GPUS[gpu]]
        matmul = fits.matmul(times, spec.bytes_per_s, spec.flops)
        yield Row(f"{gpu} reached.memory", matmul.memory_share, spec.reached.memory, matmul.errors)
        yield Row(f"{gpu} reached.flops", matmul.flops_share, spec.reached.flops, matmul.errors)
        yield Row(f"{gpu} small.matmul_s", matmul.fixed_s, spec.small.matmul_s, matmul.errors)
        small = fits.elementwise(times, spec.bytes_per_s)
        yield Row(f"{gpu} small.elementwise_s", small.fixed_s, spec.small.elementwise_s, small.errors)
        yield Row(f"{gpu} small.hidden_factor", small.hidden_factor, spec.small.hidden_factor, small.errors)
        yield Row(
            f"{gpu} small.intermediate_factor",
            small.intermediate_factor,
            spec.small.intermediate_factor,
            small.errors,
        )


def _attention(directory: Path) -> Iterator[Row]:
    kv_tokens, decode_s, pairs, prefill_s = tables.vidur_attention(directory)
    a30, a100 = HARDWARE["a30"], HARDWARE["a100-80g"]
    decode = fits.line(kv_tokens, decode_s)
    yield Row("ATTENTION_S", decode.fixed, ATTENTION_S, decode.errors)
    share = QWEN_KV_BYTES / decode.slope / a30.bytes_per_s
    yield Row("ATTENTION_MEMORY_SHARE", share, ATTENTION_MEMORY_SHARE, decode.errors)
    prefill = fits.line(pairs, prefill_s)
    share = QWEN_PAIR_FLOPS / prefill.slope / a30.flops
    yield Row("a30 attention_flops_share", share, a30.attention_flops_share, prefill.errors)
    long = fits.line(*tables.distca_attention(directory))
    share = DISTCA_PAIR_FLOPS / long.slope / a100.flops
    yield Row("a100 attention_flops_share", share, a100.attention_flops_share, long.errors)


def _links(directory: Path) -> Iterator[Row]:
    measured = tables.vidur_all_reduce(directory)
    committed = {("a100_dgx", gpus): link for gpus, link in NVLINK_A100.items()}
    committed |= {("h100_dgx", gpus): link for gpus, link in NVLINK_H100.items()}
    committed["a100_pairwise_nvlink", 4] = PCIE_PEER[4]
    for key, link in committed.items():
        fit = fits.line(*measured[key])
        name = f"{key[0]} x{key[1]} all-reduce"
        yield Row(f"{name} latency_s", fit.fixed, link.latency_s, fit.errors)
        bus = fits.bus_bytes_per_s(fit.slope, key[1])
        yield Row(f"{name} bus_bytes_per_s", bus, link.bus_bytes_per_s, fit.errors)


def _helix(directory: Path) -> Iterator[Row]:
    layers = tables.helix_layers(directory)
    floor = {
        key: float(np.median(seconds[count <= 16]))
        for key, (count, seconds) in layers.items()
        if key[1] == "decode"
    }
    slope = {key: fits.slope(*values, 1000, 3000) for key, values in layers.items() if key[1] == "prompt"}
    a100 = HARDWARE["a100-80g"]
    for machine, name in HELIX_GPUS.items():
        spec = HARDWARE[name]
        slower = [floor[model, "decode", machine] / floor[model, "decode", "A100"] for model in HELIX_MODELS]
        memory = A100_40G_BYTES_PER_S * a100.reached.memory / float(np.median(slower)) / spec.bytes_per_s
        yield Row(f"{name} reached.memory", memory, spec.reached.memory, _spread(slower))
        slower = [slope[model, "prompt", machine] / slope[model, "prompt", "A100"] for model in HELIX_MODELS]
        flops = a100.matmul_flops / float(np.median(slower)) / spec.flops
        yield Row(f"{name} reached.flops", flops, spec.reached.flops, _spread(slower))
    bus, latency = [], []
    for model in HELIX_MODELS:
        for machine, gpus in (("L4", 2), ("T4", 4)):
            several = f"{machine}x{gpus}"
            extra_s = slope[model, "prompt", several] - slope[model, "prompt", machine] / gpus
            bus.append(fits.bus_bytes_per_s(extra_s / (2 * 2 * tables.HELIX_HIDDEN[model]), gpus))
            latency.append((floor[model, "decode", several] - floor[model, "decode", machine] / gpus) / 2)
    yield Row("PCIE_HOST bus_bytes_per_s", float(np.median(bus)), PCIE_HOST[2].bus_bytes_per_s, _spread(bus))
    yield Row("PCIE_HOST latency_s", float(np.median(latency)), PCIE_HOST[2].latency_s, _spread(latency))


def _spread(values: list[float]) -> Errors:
    """How far single figures are from their median."""
    found = np.array(values)
    return Errors.of(np.full_like(found, np.median(found)), found)


def _llamacpp() -> Iterator[Row]:
    llama, card = MODELS["llama-3.1-8b"], HARDWARE["rtx-4090"]
    weights = llama.layers * llama.layer_params()
    read_bytes = 2 * (weights + llama.head_params)
    yield Row("rtx-4090 reached.memory", RTX_4090.tg_f16 * read_bytes / card.bytes_per_s, card.reached.memory)
    yield Row("rtx-4090 reached.flops", RTX_4090.pp_f16 * 2 * weights / card.flops, card.reached.flops)
    q4 = QUANTIZATIONS["q4"]
    slower = [RTX_4090.pp_q4 / RTX_4090.pp_f16, RTX_3090.pp_q4 / RTX_3090.pp_f16]
    yield Row("Q4_K_M flops_share", float(np.median(slower)), q4.flops_share, _spread(slower))
    read_s = q4.bytes_per_weight * (weights + llama.head_params) / card.read_bytes_per_s
    layer_s = (1 / RTX_4090.tg_q4 - read_s) / llama.layers
    yield Row("LLAMACPP_LAYER_S", layer_s, LLAMACPP_LAYER_S)
    # The mean context is half of what is generated.
    per_token_s = (1 / RTX_4090.tg4096_q4 - 1 / RTX_4090.tg_q4) / ((4096 - 512) / 2)
    share = llama.kv_bytes_per_token() / per_token_s / card.bytes_per_s
    yield Row("LLAMACPP_ATTENTION_SHARE", share, LLAMACPP_ATTENTION_SHARE)
    a100, h100 = HARDWARE["a100-80g"], HARDWARE["h100-80g"]
    read_bytes = 2 * (LLAMA2_7B_LAYERS + LLAMA2_7B_HEAD)
    memory = A100_PCIE_TG * read_bytes / A100_PCIE_BYTES_PER_S / a100.reached.memory
    yield Row("a100 llamacpp.memory", memory, a100.llamacpp.memory)
    yield Row(
        "a100 llamacpp.flops", A100_PCIE_PP * 2 * LLAMA2_7B_LAYERS / a100.matmul_flops, a100.llamacpp.flops
    )
    memory = H100_PCIE_TG * read_bytes / H100_PCIE_BYTES_PER_S / h100.reached.memory
    yield Row("h100 llamacpp.memory", memory, h100.llamacpp.memory)


def _host(directory: Path) -> Iterator[Row]:
    prompt_tokens, _, tpot_s = tables.aibrix_cold(directory)
    step_s = profile("llama-3.1-8b@a100-80g").step_s(0, 1, prompt_tokens + 50)
    host_s = float(np.median(tpot_s)) - (step_s - HOST_S)
    yield Row("HOST_S", host_s, HOST_S, Errors.of(np.full_like(tpot_s, step_s), tpot_s))
