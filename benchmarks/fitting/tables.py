"""Reads the measurement tables into arrays. Times in seconds."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decoder layer's cost depends on. `up` is 2 with a gated MLP, else 1."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    up: int = 2

    def layer_params(self, gpus: int) -> float:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * max(self.kv_heads, gpus))
        return (attention + (self.up + 1) * self.hidden * self.intermediate) / gpus


#: Models of the Vidur tables, from their public config.json files.
VIDUR_SHAPES = {
    "meta-llama/Llama-2-7b-hf": Shape(4096, 32, 32, 128, 11008),
    "meta-llama/Llama-2-70b-hf": Shape(8192, 64, 8, 128, 28672),
    "meta-llama/Meta-Llama-3-8B": Shape(4096, 32, 8, 128, 14336),
    "meta-llama/Meta-Llama-3-70B": Shape(8192, 64, 8, 128, 28672),
    "codellama/CodeLlama-34b-Instruct-hf": Shape(8192, 64, 8, 128, 22016),
    "internlm/internlm-20b": Shape(5120, 40, 40, 128, 13824),
    "microsoft/phi-2": Shape(2560, 32, 32, 80, 10240, up=1),
    "Qwen/Qwen-72B": Shape(8192, 64, 64, 128, 24576),
    "Qwen/Qwen-2-7B": Shape(3584, 28, 4, 128, 18944),
}
#: Models of the Helix tables: weights of one layer.
HELIX_LAYER_PARAMS = {"llama30b": 535e6, "llama70b": 855.6e6}
HELIX_HIDDEN = {"llama30b": 6656, "llama70b": 8192}


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Vidur's operator times of one layer on one kind of GPU, a row a measurement."""

    params: Array
    tokens: Array
    hidden: Array
    intermediate: Array
    matmul_s: Array
    elementwise_s: Array


def rows(path: Path) -> list[dict[str, str]]:
    """All rows of a CSV file, gzipped or not. Raises OSError."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", newline="") as file:
            return list(csv.DictReader(file))
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def vidur_layers(directory: Path) -> dict[str, LayerTimes]:
    """Vidur's MLP and projection times by GPU."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for row in rows(directory / "vidur_profiles" / "mlp_ops_ms.csv.gz"):
        shape = VIDUR_SHAPES.get(row["model"])
        matmul = [row[name] for name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")]
        if shape is None or not all(matmul):  # some operators were not measured at some sizes
            continue
        small = [
            row[name]
            for name in ("add", "attn_rope", "input_layernorm", "mlp_act", "post_attention_layernorm")
        ]
        gpus = int(row["tensor_parallel"])
        found[row["gpu"]].append(
            (
                shape.layer_params(gpus),
                float(row["num_tokens"]),
                shape.hidden,
                shape.intermediate / gpus,
                1e-3 * sum(map(float, matmul)),
                1e-3 * sum(float(value) for value in small if value),
            )
        )
    return {gpu: LayerTimes(*np.array(values, dtype=np.float64).T) for gpu, values in found.items()}


def vidur_all_reduce(directory: Path) -> dict[tuple[str, int], tuple[Array, Array]]:
    """Bytes and seconds of all-reduces inside one machine, by topology and number of GPUs."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows(directory / "vidur_profiles" / "network_ms.csv.gz"):
        if row["collective"] == "all_reduce" and row["num_workers"] == row["devices_per_node"]:
            found[row["topology"], int(row["num_workers"])].append(
                (float(row["bytes_or_size"]), 1e-3 * float(row["median_ms"]))
            )
    return {key: (np.array(value)[:, 0], np.array(value)[:, 1]) for key, value in found.items()}


def vidur_attention(directory: Path) -> tuple[Array, Array, Array, Array]:
    """One layer's attention of Qwen2-7B on the A30: decode (KV tokens, seconds), prefill (pairs, seconds)."""
    decode: list[tuple[float, float]] = []
    prefill: list[tuple[float, float]] = []
    for row in rows(directory / "vidur_profiles" / "attention_qwen2_7b_a30_ms.csv.gz"):
        if row["is_prefill"] == "1":
            new, old = float(row["prefill_chunk"]), float(row["kv_cache_tokens"])
            prefill.append((new * (old + (new + 1) / 2), 1e-3 * float(row["prefill_ms"])))
        else:
            kv_tokens = float(row["batch_size"]) * float(row["kv_cache_tokens"])
            decode.append((kv_tokens, 1e-3 * float(row["decode_ms"])))
    d, p = np.array(decode), np.array(prefill)
    return d[:, 0], d[:, 1], p[:, 0], p[:, 1]


def distca_attention(directory: Path) -> tuple[Array, Array]:
    """Prefill attention of one sequence with 32 heads x 128 on the A100: pairs and seconds."""
    table = rows(directory / "wlb_attention_profile_a100_80gb.csv")
    one = np.array(
        [(float(r["tokens"]), float(r["attn_fwd_ms"])) for r in table if r["tp"] == r["cp"] == "1"]
    )
    return one[:, 0] * (one[:, 0] + 1) / 2, 1e-3 * one[:, 1]


def helix_layers(directory: Path) -> dict[tuple[str, str, str], tuple[Array, Array]]:
    """Tokens (prompt) or sequences (decode) and seconds of one layer, by model, phase and machine."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows(directory / "helix" / "layer_profile.csv"):
        if float(row["batch_tokens"]) > 0:
            key = row["model"], row["phase"], row["machine"]
            found[key].append((float(row["batch_tokens"]), 1e-3 * float(row["layer_time_ms"])))
    return {key: (np.array(value)[:, 0], np.array(value)[:, 1]) for key, value in found.items()}


def v100_ratios(directory: Path) -> Array:
    """A100 over V100 throughput of single-GPU vLLM runs, prefill for the greater part."""
    return np.array(
        [
            float(row["throughput_a100"]) / float(row["throughput_tesla"])
            for row in rows(directory / "vllm_throughput_a100_tesla.csv")
            if row["nr_gpus"] == "1" and row["status_a100"] == row["status_tesla"] == "ok"
        ]
    )


def aibrix_cold(directory: Path) -> tuple[float, Array, Array]:
    """Llama 3.1 8B on the A100 without prefix reuse at low load: prompt tokens, TTFT and time per output
    token of each request."""
    table = [
        row
        for row in rows(directory / "aibrix_vllm_llama31_8b" / "requests.csv.gz")
        if (row["release"], row["config"]) == ("v0.2.1", "naive")
        and float(row["qps"]) <= 0.5
        and int(row["generation_tokens"]) >= 50
        and float(row["ttft_s"]) > 1.0  # less: its prompt was in the prefix cache
    ]
    prompts = np.array([float(row["prompt_tokens"]) for row in table])
    ttft = np.array([float(row["ttft_s"]) for row in table])
    tpot = np.array([float(row["generation_s"]) / (int(row["generation_tokens"]) - 1) for row in table])
    return float(np.median(prompts)), ttft, tpot
