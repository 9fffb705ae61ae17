"""`scripts/fit_profiles` over tables that are made from known constants, and without tables."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from backends.engine.hardware import HARDWARE, NVLINK_A100, NVLINK_H100
from tests.data_files import put

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "fit_profiles"
SIZES = [1, 8, 32, 128, 512, 1024, 2048, 4096]
#: Width, width inside the MLP, weights of a layer. The script skips a model without a known shape.
MODELS = {
    "meta-llama/Llama-2-7b-hf": (4096, 11008, 4 * 4096 * 4096 + 3 * 4096 * 11008),
    "meta-llama/Llama-2-70b-hf": (8192, 28672, 8192 * 128 * (2 * 64 + 2 * 8) + 3 * 8192 * 28672),
    "not/known": (1, 1, 1),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HEADWAY_DATA"}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=100)


def operators(model: str, tokens: int) -> dict[str, object]:
    """80 % of the A100's bandwidth, 60 % of its FLOPS, 20 us; 10 us and 10 and 6 crossings between the products."""
    spec = HARDWARE["a100-80g"]
    hidden, intermediate, params = MODELS[model]
    read_s, sums_s = 2 * params / (0.8 * spec.bytes_per_s), 2 * params * tokens / (0.6 * spec.flops)
    small_s = 1e-5 + 2 * tokens * (10 * hidden + 6 * intermediate) / spec.bytes_per_s
    products = dict.fromkeys(("attn_post_proj", "mlp_up_proj", "mlp_down_proj"), "1e-12")
    return {"attn_pre_proj": 1e3 * (2e-5 + max(read_s, sums_s)), **products, "add": 1e3 * small_s}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every table, with as few rows as the fits need."""
    between = dict.fromkeys(("attn_rope", "input_layernorm", "mlp_act", "post_attention_layernorm"), "")
    put(
        tmp_path / "vidur_profiles" / "mlp_ops_ms.csv.gz",
        [
            {"gpu": "a100", "model": model, "tensor_parallel": 1, "num_tokens": tokens}
            | operators(model, tokens)
            | between
            for model, tokens in product(MODELS, SIZES)
        ],
    )
    links = [*product(["a100_dgx"], NVLINK_A100), *product(["h100_dgx"], NVLINK_H100)]
    put(
        tmp_path / "vidur_profiles" / "network_ms.csv.gz",
        [
            {"topology": topology, "collective": "all_reduce", "num_workers": gpus, "devices_per_node": gpus}
            | {"bytes_or_size": size, "median_ms": 1e3 * (3e-5 + size * 2 * (gpus - 1) / gpus / 1e11)}
            for (topology, gpus), size in product([*links, ("a100_pairwise_nvlink", 4)], SIZES)
        ],
    )
    put(
        tmp_path / "vidur_profiles" / "attention_qwen2_7b_a30_ms.csv.gz",
        [
            {"is_prefill": prefill, "prefill_chunk": size, "batch_size": 1, "kv_cache_tokens": size}
            | {"prefill_ms": size * (size + (size + 1) / 2) * 1e-6, "decode_ms": 0.02 + 1e-6 * size}
            for prefill, size in product((0, 1), SIZES)
        ],
    )
    put(
        tmp_path / "wlb_attention_profile_a100_80gb.csv",
        [{"tp": 1, "cp": 1, "tokens": n, "attn_fwd_ms": 0.1 + n * (n + 1) * 1e-7} for n in SIZES],
    )
    machines = {"A100": 1, "L4": 4, "T4": 5, "V100": 2, "L4x2": 3, "T4x4": 3}
    put(
        tmp_path / "helix" / "layer_profile.csv",
        [
            {"model": model, "phase": phase, "machine": machine, "batch_tokens": n}
            | {"layer_time_ms": slower * (1 + n)}
            for model, phase, (machine, slower), n in product(
                ("llama30b", "llama70b"), ("prompt", "decode"), machines.items(), [0, *SIZES]
            )
        ],
    )
    put(
        tmp_path / "vllm_throughput_a100_tesla.csv",
        [
            {"model": "m", "nr_gpus": 1, "batch_size": 1, "status_a100": "ok", "status_tesla": "ok"}
            | {"throughput_a100": 5, "throughput_tesla": 2}
        ],
    )
    put(
        tmp_path / "aibrix_vllm_llama31_8b" / "requests.csv.gz",
        [
            {"release": "v0.2.1", "config": "naive", "qps": 0.1, "prompt_tokens": 20_000, "ttft_s": ttft_s}
            | {"generation_tokens": 101, "generation_s": 2}
            for ttft_s in (0.1, 2, 3)
        ],
    )
    return tmp_path


def test_the_fits_find_the_constants_that_made_the_tables(data: Path) -> None:
    done = run("--data", str(data))
    assert (done.returncode, done.stderr) == (0, "")
    figures = {line[:56].rstrip(): line[56:].split() for line in done.stdout.splitlines()}
    expected = {
        "a100 reached.memory": "0.8",
        "a100 reached.flops": "0.6",
        "a100 small.matmul_s": "2e-05",
        "a100 small.elementwise_s": "1e-05",
        "a100 small.hidden_factor": "10",
        "a100 small.intermediate_factor": "6",
        "ATTENTION_S": "2e-05",
        "a100_dgx x8 all-reduce latency_s": "3e-05",
        "a100_dgx x8 all-reduce bus_bytes_per_s": "1e+11",
        "A100 over V100 throughput, prefill for the greater part": "2.5",
        "TTFT of 20000 tokens, llama-3.1-8b@a100-80g, s": "2.5",
    }
    assert {name: figures[name][0] for name in expected} == expected
    assert figures["a100 reached.memory"][1] == str(HARDWARE["a100-80g"].reached.memory)
    assert figures["a100 reached.memory"][-3:] == [str(2 * len(SIZES)), "0.0%", "0.0%"]


def test_missing_data_is_one_clear_line(tmp_path: Path) -> None:
    done = run("--data", str(tmp_path))
    assert done.returncode == 2
    assert "mlp_ops_ms.csv.gz" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run()
    assert (done.returncode, "HEADWAY_DATA" in done.stderr) == (2, True)
