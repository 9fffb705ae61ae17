"""Fits the constants of `backends.engine.hardware` again, from published measurements.

    python scripts/fit_profiles --data DIR

prints each fitted constant beside the committed one, with the error of the fit. DIR holds the folders
`vidur_profiles`, `helix`, `aibrix_vllm_llama31_8b` and the files `wlb_attention_profile_a100_80gb.csv` and
`vllm_throughput_a100_tesla.csv`; the environment variable HEADWAY_DATA stands in for `--data`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import fits
import numpy as np
import tables

from backends.engine import hardware, profile
from backends.engine.hardware import HARDWARE, NVLINK_A100, NVLINK_H100, PCIE_HOST, PCIE_PEER, QUANTIZATIONS
from backends.engine.models import MODELS
from benchmarks.calibrate.sources.vllm_throughput import PROMPT_TOKENS
from benchmarks.workloads.format import WorkloadError

A100, A30 = HARDWARE["a100-80g"], HARDWARE["a30"]
#: The Helix machines have A100s with 40 GB: less bandwidth than those with 80 GB (data sheet).
A100_40G_BYTES_PER_S = 1.555e12
VIDUR_GPUS = {"a100": "a100-80g", "h100": "h100-80g", "a40": "a40", "a30": "a30"}
HELIX_GPUS = {"L4": "l4", "T4": "t4", "V100": "v100-32g"}
#: Models of the Helix tables: width of a layer's activations.
HELIX_HIDDEN = {"llama30b": 6656, "llama70b": 8192}
# Qwen2-7B, the model of the attention table: bytes of keys and values, and operations for a token pair, of a
# layer. DistCA's has 32 heads.
QWEN_KV_BYTES, QWEN_PAIR_FLOPS, DISTCA_PAIR_FLOPS = 2 * 4 * 128 * 2, 4 * 28 * 128, 4 * 32 * 128
# Tokens per second of Llama 3 8B by llama-bench (XiongjieDai/GPU-Benchmarks-on-LLM-Inference 00dd2bd), on an
# RTX 4090 and an RTX 3090: 512 tokens generated (TG) and prompted (PP) with 16-bit and with Q4_K_M weights, 4,096
# generated with Q4_K_M.
RTX_4090_TG_F16, RTX_4090_PP_F16, RTX_4090_TG_Q4, RTX_4090_PP_Q4 = 54.84, 9382.0, 130.58, 7138.99
RTX_4090_TG4096_Q4 = 119.44
RTX_3090_PP_F16, RTX_3090_PP_Q4 = 4444.65, 4030.40
# Llama 2 7B, 16-bit: 6.48e9 weights in layers, 0.13e9 in the output layer. A100 and H100 PCIe generating
# (the same tables), A100 prompting (llama.cpp pull request 6017), with the bandwidth of those PCIe cards.
LLAMA2_7B_LAYERS, LLAMA2_7B_HEAD = 6.48e9, 0.13e9
A100_PCIE_TG, A100_PCIE_PP, A100_PCIE_BYTES_PER_S = 73.83, 8381.0, 1.935e12
H100_PCIE_TG, H100_PCIE_BYTES_PER_S = 83.32, 2.0e12

#: A constant's name, its fitted and its committed value, and the errors of the fit over its table; None for a ratio
#: of two figures. Of a check: the measured and the model's value.
Figure = tuple[str, float, float, fits.Errors | None]


def main() -> int:
    """Print the report. Returns the exit status: 2 when the data is not there."""
    parser = argparse.ArgumentParser(prog="fit_profiles", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HEADWAY_DATA"), help="folder of the tables"
    )
    directory = parser.parse_args().data
    if directory is None:
        print("no data: give --data DIR or set HEADWAY_DATA", file=sys.stderr)
        return 2
    try:
        parts = (layers, attention, links, helix, llamacpp, host)
        constants = [figure for part in parts for figure in part(Path(directory))]
        checked = list(checks(Path(directory)))
    except OSError as error:
        print(f"cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except WorkloadError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'constant':56} {'fitted':>12} {'committed':>12} {'differ':>7}   rows  median  p90 error")
    print(*map(_line, constants), sep="\n")
    print(f"\n{'check of a whole profile':56} {'measured':>12} {'model':>12} {'differ':>7}")
    print(*map(_line, checked), sep="\n")
    return 0


def _line(figure: Figure) -> str:
    name, fitted, committed, errors = figure
    fit = f"{errors.rows:6d} {errors.median:7.1%} {errors.p90:6.1%}" if errors else ""
    return f"{name:56} {fitted:12.4g} {committed:12.4g} {abs(fitted / committed - 1):7.1%} {fit}".rstrip()


def layers(directory: Path) -> Iterator[Figure]:
    """Matrix products and the operators between them, from Vidur's tables."""
    for gpu, times in sorted(tables.vidur_layers(directory).items()):
        spec = HARDWARE[VIDUR_GPUS[gpu]]
        memory, flops, matmul_s, errors = fits.matmul(times, spec.bytes_per_s, spec.flops)
        yield f"{gpu} reached.memory", memory, spec.reached.memory, errors
        yield f"{gpu} reached.flops", flops, spec.reached.flops, errors
        yield f"{gpu} small.matmul_s", matmul_s, spec.small.matmul_s, errors
        fixed_s, hidden, intermediate, errors = fits.elementwise(times, spec.bytes_per_s)
        yield f"{gpu} small.elementwise_s", fixed_s, spec.small.elementwise_s, errors
        yield f"{gpu} small.hidden_factor", hidden, spec.small.hidden_factor, errors
        yield f"{gpu} small.intermediate_factor", intermediate, spec.small.intermediate_factor, errors


def attention(directory: Path) -> Iterator[Figure]:
    """Attention of decode and of prefill."""
    decode, prefill = tables.vidur_attention(directory)
    fixed_s, slope, errors = fits.line(*decode)
    yield "ATTENTION_S", fixed_s, hardware.ATTENTION_S, errors
    share = QWEN_KV_BYTES / slope / A30.bytes_per_s
    yield "ATTENTION_MEMORY_SHARE", share, hardware.ATTENTION_MEMORY_SHARE, errors
    _, slope, errors = fits.line(*prefill)
    yield "a30 attention_flops_share", QWEN_PAIR_FLOPS / slope / A30.flops, A30.attention_flops_share, errors
    _, slope, errors = fits.line(*tables.distca_attention(directory))
    yield (
        "a100 attention_flops_share",
        DISTCA_PAIR_FLOPS / slope / A100.flops,
        A100.attention_flops_share,
        errors,
    )


def links(directory: Path) -> Iterator[Figure]:
    """All-reduces between the GPUs of one machine."""
    measured = tables.vidur_all_reduce(directory)
    committed = [("a100_dgx", gpus, link) for gpus, link in NVLINK_A100.items()]
    committed += [("h100_dgx", gpus, link) for gpus, link in NVLINK_H100.items()]
    for topology, gpus, link in (*committed, ("a100_pairwise_nvlink", 4, PCIE_PEER[4])):
        name = f"{topology} x{gpus}"
        latency_s, slope, errors = fits.line(*measured[name])
        yield f"{name} all-reduce latency_s", latency_s, link.latency_s, errors
        bus = fits.bus_bytes_per_s(slope, gpus)
        yield f"{name} all-reduce bus_bytes_per_s", bus, link.bus_bytes_per_s, errors


def helix(directory: Path) -> Iterator[Figure]:
    """GPUs relative to the A100, and links through the host, from the layer times of Helix."""
    measured = tables.helix_layers(directory)
    floor = {
        key: float(np.median(seconds[count <= 16]))
        for key, (count, seconds) in measured.items()
        if " decode " in key
    }
    slope = {
        key: fits.slope(*values, low=1000, high=3000) for key, values in measured.items() if " prompt " in key
    }
    for machine, name in HELIX_GPUS.items():
        spec = HARDWARE[name]
        slower = [
            floor[f"{model} decode {machine}"] / floor[f"{model} decode A100"] for model in HELIX_HIDDEN
        ]
        memory = A100_40G_BYTES_PER_S * A100.reached.memory / float(np.median(slower)) / spec.bytes_per_s
        yield f"{name} reached.memory", memory, spec.reached.memory, fits.spread(slower)
        slower = [
            slope[f"{model} prompt {machine}"] / slope[f"{model} prompt A100"] for model in HELIX_HIDDEN
        ]
        flops = A100.matmul_flops / float(np.median(slower)) / spec.flops
        yield f"{name} reached.flops", flops, spec.reached.flops, fits.spread(slower)
    bus, latency = [], []
    for model, hidden in HELIX_HIDDEN.items():
        for machine, gpus in (("L4", 2), ("T4", 4)):
            prompt, decode = f"{model} prompt {machine}", f"{model} decode {machine}"
            extra_s = slope[f"{prompt}x{gpus}"] - slope[prompt] / gpus
            bus.append(fits.bus_bytes_per_s(extra_s / (2 * 2 * hidden), gpus))
            latency.append((floor[f"{decode}x{gpus}"] - floor[decode] / gpus) / 2)
    host = PCIE_HOST[2]
    yield "PCIE_HOST bus_bytes_per_s", float(np.median(bus)), host.bus_bytes_per_s, fits.spread(bus)
    yield "PCIE_HOST latency_s", float(np.median(latency)), host.latency_s, fits.spread(latency)


def llamacpp(_: Path) -> Iterator[Figure]:
    """llama.cpp's shares, from figures that stand above."""
    llama, card = MODELS["llama-3.1-8b"], HARDWARE["rtx-4090"]
    weights = llama.layers * llama.layer_params()
    memory = RTX_4090_TG_F16 * 2 * (weights + llama.head_params) / card.bytes_per_s
    yield "rtx-4090 reached.memory", memory, card.reached.memory, None
    yield "rtx-4090 reached.flops", RTX_4090_PP_F16 * 2 * weights / card.flops, card.reached.flops, None
    q4 = QUANTIZATIONS["q4"]
    slower = [RTX_4090_PP_Q4 / RTX_4090_PP_F16, RTX_3090_PP_Q4 / RTX_3090_PP_F16]
    yield "Q4_K_M flops_share", float(np.median(slower)), q4.flops_share, fits.spread(slower)
    read_s = q4.bytes_per_weight * (weights + llama.head_params) / card.read_bytes_per_s
    layer_s = (1 / RTX_4090_TG_Q4 - read_s) / llama.layers
    yield "LLAMACPP_LAYER_S", layer_s, hardware.LLAMACPP_LAYER_S, None
    # The mean context is half of what is generated.
    per_token_s = (1 / RTX_4090_TG4096_Q4 - 1 / RTX_4090_TG_Q4) / ((4096 - 512) / 2)
    share = llama.kv_bytes_per_token() / per_token_s / card.bytes_per_s
    yield "LLAMACPP_ATTENTION_SHARE", share, hardware.LLAMACPP_ATTENTION_SHARE, None
    h100, read_bytes = HARDWARE["h100-80g"], 2 * (LLAMA2_7B_LAYERS + LLAMA2_7B_HEAD)
    memory = A100_PCIE_TG * read_bytes / A100_PCIE_BYTES_PER_S / A100.reached.memory
    yield "a100 llamacpp.memory", memory, A100.llamacpp.memory, None
    flops = A100_PCIE_PP * 2 * LLAMA2_7B_LAYERS / A100.matmul_flops
    yield "a100 llamacpp.flops", flops, A100.llamacpp.flops, None
    memory = H100_PCIE_TG * read_bytes / H100_PCIE_BYTES_PER_S / h100.reached.memory
    yield "h100 llamacpp.memory", memory, h100.llamacpp.memory, None


def host(directory: Path) -> Iterator[Figure]:
    """Host time of a step: what a whole profile lacks beside AIBrix's runs at low load."""
    prompt_tokens, _, tpot_s = tables.aibrix_cold(directory)
    step_s = profile("llama-3.1-8b@a100-80g").step_s(0, 1, prompt_tokens + 50)
    host_s = float(np.median(tpot_s)) - (step_s - hardware.HOST_S)
    yield "HOST_S", host_s, hardware.HOST_S, fits.errors(step_s, tpot_s)


def checks(directory: Path) -> Iterator[Figure]:
    """Whole profiles beside measurements that no constant was fitted to."""
    prompt_tokens, ttft_s, _ = tables.aibrix_cold(directory)
    a100, v100 = profile("llama-3.1-8b@a100-80g"), profile("llama-3.1-8b@v100-32g")
    predicted_s = a100.prefill_s(int(prompt_tokens))
    name = f"TTFT of {prompt_tokens:.0f} tokens, llama-3.1-8b@a100-80g, s"
    yield name, float(np.median(ttft_s)), predicted_s, fits.errors(predicted_s, ttft_s)
    ratio = float(np.median(tables.v100_ratios(directory)))
    name = "A100 over V100 throughput, prefill for the greater part"
    yield name, ratio, v100.prefill_s(PROMPT_TOKENS) / a100.prefill_s(PROMPT_TOKENS), None


if __name__ == "__main__":
    sys.exit(main())
