"""Reads the published measurement tables into arrays. Times are in seconds."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.calibrate.lines import Array
from benchmarks.calibrate.sources import vllm_throughput

Row = dict[str, str]


class Shape(NamedTuple):
    """What the cost of a decoder layer depends on. `up` is 2 with a gated MLP, else 1."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    up: int = 2

    def layer_params(self, gpus: int) -> float:
        """Weights of one layer on each of `gpus` GPUs."""
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
_MATMULS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_ELEMENTWISE = ("add", "attn_rope", "input_layernorm", "mlp_act", "post_attention_layernorm")


class LayerTimes(NamedTuple):
    """Operator times of one layer on one kind of GPU: each array has one entry per measurement."""

    params: Array
    tokens: Array
    hidden: Array
    intermediate: Array
    matmul_s: Array
    elementwise_s: Array


def vidur_layers(directory: Path) -> dict[str, LayerTimes]:
    """Vidur's MLP and projection times by GPU. Raises OSError, as all functions here do."""
    # Some operators were not measured at some sizes.
    measured = [
        row
        for row in _rows(directory / "vidur_profiles" / "mlp_ops_ms.csv.gz")
        if row["model"] in VIDUR_SHAPES and all(row[name] for name in _MATMULS)
    ]
    return {gpu: LayerTimes(*columns) for gpu, columns in _grouped(measured, "gpu", _layer).items()}


def _layer(row: Row) -> tuple[float, ...]:
    shape, gpus = VIDUR_SHAPES[row["model"]], int(row["tensor_parallel"])
    return (
        shape.layer_params(gpus),
        float(row["num_tokens"]),
        shape.hidden,
        shape.intermediate / gpus,
        1e-3 * sum(float(row[name]) for name in _MATMULS),
        1e-3 * sum(float(row[name] or 0) for name in _ELEMENTWISE),
    )


def vidur_all_reduce(directory: Path) -> dict[str, Array]:
    """Bytes and seconds of all-reduces inside one machine, by `TOPOLOGY xGPUS`."""
    inside = [
        row | {"link": f"{row['topology']} x{row['num_workers']}"}
        for row in _rows(directory / "vidur_profiles" / "network_ms.csv.gz")
        if row["collective"] == "all_reduce" and row["num_workers"] == row["devices_per_node"]
    ]
    return _grouped(inside, "link", lambda row: (float(row["bytes_or_size"]), 1e-3 * float(row["median_ms"])))


def vidur_attention(directory: Path) -> tuple[Array, Array]:
    """One layer's attention of Qwen2-7B on the A30: decode (KV tokens, seconds), prefill (pairs, seconds)."""
    phases = _grouped(
        _rows(directory / "vidur_profiles" / "attention_qwen2_7b_a30_ms.csv.gz"), "is_prefill", _attention
    )
    return phases["0"], phases["1"]


def _attention(row: Row) -> tuple[float, float]:
    context = float(row["kv_cache_tokens"])
    if row["is_prefill"] == "1":
        new = float(row["prefill_chunk"])
        return new * (context + (new + 1) / 2), 1e-3 * float(row["prefill_ms"])
    return float(row["batch_size"]) * context, 1e-3 * float(row["decode_ms"])


def distca_attention(directory: Path) -> Array:
    """Prefill attention of one sequence with 32 heads x 128 on the A100: pairs and seconds."""
    table = _rows(directory / "wlb_attention_profile_a100_80gb.csv")
    tokens, ms = np.array(
        [(r["tokens"], r["attn_fwd_ms"]) for r in table if r["tp"] == r["cp"] == "1"], float
    ).T
    return np.array([tokens * (tokens + 1) / 2, 1e-3 * ms])


def helix_layers(directory: Path) -> dict[str, Array]:
    """Tokens (prompt) or sequences (decode) and seconds of one layer, by `MODEL PHASE MACHINE`."""
    measured = [
        row | {"key": f"{row['model']} {row['phase']} {row['machine']}"}
        for row in _rows(directory / "helix" / "layer_profile.csv")
        if float(row["batch_tokens"]) > 0
    ]
    return _grouped(
        measured, "key", lambda row: (float(row["batch_tokens"]), 1e-3 * float(row["layer_time_ms"]))
    )


def v100_ratios(directory: Path) -> Array:
    """A100 over V100 throughput of single-GPU vLLM runs, prefill for the greater part."""
    return np.array([row.ratio() for row in vllm_throughput.rows(directory) if row.nr_gpus == 1])


def aibrix_cold(directory: Path) -> tuple[float, Array, Array]:
    """Llama 3.1 8B on the A100 without prefix reuse at low load: the median of prompt tokens; TTFT and time per
    output token of each request."""
    prompts, ttft_s, tpot_s = np.array(
        [
            (
                row["prompt_tokens"],
                row["ttft_s"],
                float(row["generation_s"]) / (int(row["generation_tokens"]) - 1),
            )
            for row in _rows(directory / "aibrix_vllm_llama31_8b" / "requests.csv.gz")
            if (row["release"], row["config"]) == ("v0.2.1", "naive")
            and float(row["qps"]) <= 0.5
            and int(row["generation_tokens"]) >= 50
            and float(row["ttft_s"]) > 1.0  # below that, the prompt was in the prefix cache
        ],
        float,
    ).T
    return float(np.median(prompts)), ttft_s, tpot_s


def _grouped(
    table: Iterable[Row], column: str, values: Callable[[Row], tuple[float, ...]]
) -> dict[str, Array]:
    """For each value of `column`, what `values` makes of its rows, a row of the array for each of its items."""
    found = defaultdict(list)
    for row in table:
        found[row[column]].append(values(row))
    return {key: np.array(each, float).T for key, each in found.items()}


def _rows(path: Path) -> list[Row]:
    """All rows of a CSV file, gzipped or not."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return list(csv.DictReader(text.splitlines()))
