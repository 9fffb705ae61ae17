"""Unlike hardware: what GPUs give one model, what of it was measured, and which formats of weights run where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from backends.engine import profile
from backends.engine.hardware import HARDWARE
from benchmarks.calibrate.sources import vllm_throughput
from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section, Value
from policies.placement.hardware_support import support
from policies.placement.types import GpuKind, Precision

MODEL = "llama-3.1-8b"
KINDS = ("h100-80g", "a100-80g", "a40", "a30", "v100-32g", "l4", "rtx-4090")
REFERENCE = "a100-80g"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
#: Tokens in the KV cache of each decoding sequence, and of a prompt that is prefilled.
_CONTEXT_TOKENS, _PROMPT_TOKENS = 1000, 1000
#: Columns that agree this closely at all batch sizes may be a copy of each other.
_SAME = 0.01
#: The batch sizes of the table; the figure has all.
_SHOWN_BATCHES = (1, 8, 64, 512)


def sections(data: Path | None) -> Iterator[Section]:
    """Speed by the engine profiles, the A100 against the V100 as published, and formats of weights."""
    yield _speed()
    if data is not None and (data / vllm_throughput.FILE).is_file():
        yield _measured(data)
    yield _formats()


def decode_per_s(name: str, batch: int) -> float:
    """Tokens in a second of `batch` decoding sequences under an engine profile."""
    return batch / profile(name).step_s(0, batch, batch * _CONTEXT_TOKENS)


def prefill_per_s(name: str) -> float:
    """Prompt tokens in a second of one prompt on an idle engine."""
    return _PROMPT_TOKENS / profile(name).prefill_s(_PROMPT_TOKENS)


def speeds(name: str) -> dict[str, Value]:
    """An engine profile's columns of memory and speed."""
    return {
        "KV tokens": profile(name).kv_capacity_tokens,
        "prefill (tokens/s)": prefill_per_s(name),
        "decode, 1 sequence (tokens/s)": decode_per_s(name, 1),
        "decode, 32 sequences (tokens/s)": decode_per_s(name, 32),
    }


def _speed() -> Section:
    curves = {
        kind: [(batch, decode_per_s(f"{MODEL}@{kind}", batch)) for batch in BATCHES if _fits(kind, batch)]
        for kind in KINDS
    }
    rows: list[dict[str, Value]] = []
    for kind in KINDS:
        spec, name, reference = HARDWARE[kind], f"{MODEL}@{kind}", f"{MODEL}@{REFERENCE}"
        rows.append(
            {
                "GPU": kind,
                "memory (GB)": spec.memory_bytes / 1e9,
                "bandwidth (GB/s)": spec.bytes_per_s / 1e9,
                "16-bit TFLOP/s": spec.flops / 1e12,
                **speeds(name),
                f"prefill / {REFERENCE}": prefill_per_s(name) / prefill_per_s(reference),
                f"decode of 32 / {REFERENCE}": decode_per_s(name, 32) / decode_per_s(reference, 32),
            }
        )
    return Section(
        "Hardware: one model on unlike GPUs",
        [
            f"Times are of Headway's engine profiles of {MODEL} with 16-bit weights under vLLM, which are fitted to published"
            f" measurements. Each sequence has {_CONTEXT_TOKENS:,} tokens of context. A curve ends where KV memory does.",
        ],
        [Results.of(f"{MODEL} by GPU", rows)],
        [
            charts.lines(
                "hardware_decode",
                f"Decode throughput of {MODEL} by GPU and batch size",
                "decoding sequences",
                "tokens/s",
                {"": curves},
                log_x=True,
                log_y=True,
            )
        ],
    )


def _fits(kind: str, batch: int) -> bool:
    return batch * _CONTEXT_TOKENS <= profile(f"{MODEL}@{kind}").kv_capacity_tokens


def _measured(data: Path) -> Section:
    by_engine: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row in vllm_throughput.rows(data):
        by_engine[row.model, row.nr_gpus][row.batch_size] = row.ratio()
    copies = {
        engine
        for engine, ratios in by_engine.items()
        if all(abs(ratio - 1) < _SAME for ratio in ratios.values())
    }
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    for engine, of_engine in by_engine.items():
        for batch, ratio in of_engine.items() if engine not in copies else ():
            ratios[engine[1], batch].append(ratio)
    rows: list[list[Value]] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for (gpus, batch), found in sorted(ratios.items()):
        low, middle, high = np.quantile(found, (0.25, 0.5, 0.75)).tolist()
        if batch in _SHOWN_BATCHES:
            rows.append([gpus, batch, len(found), middle, low, high])
        curves.setdefault(f"{gpus} GPU{'s' if gpus > 1 else ''}", []).append((batch, middle))
    a100, v100 = f"{MODEL}@a100-80g", f"{MODEL}@v100-32g"
    prefill = prefill_per_s(a100) / prefill_per_s(v100)
    decode = decode_per_s(a100, 1) / decode_per_s(v100, 1)
    return Section(
        "Hardware, measured: A100 against V100",
        [
            "Published throughput of code models under vLLM (arXiv 2408.01050, appendix). Each prompt gets five tokens, so prefill"
            " and start-up dominate: it is no decode throughput.",
            f"Left out because a column may be a copy: {len(copies)} of {len(by_engine)} engines, with the same throughput on"
            f" both within {_SAME:.0%} at all batch sizes.",
            f"The engine profiles give for llama-3.1-8b: prefill {prefill:.2f} times, decode of one sequence {decode:.2f}"
            " times.",
        ],
        [
            Results(
                "A100 over V100: median and quartiles of the models' throughput ratios",
                ("GPUs", "batch size", "models", "median ratio", "lower quartile", "upper quartile"),
                rows,
            )
        ],
        [
            charts.lines(
                "hardware_a100_v100",
                "Measured throughput of the A100 over that of the V100, median over models",
                "batch size",
                "A100 throughput / V100 throughput",
                {"": curves},
                log_x=True,
            )
        ],
    )


def _formats() -> Section:
    cells = {
        (precision.value, kind): row.note or "native"
        for precision in Precision
        for kind, spec in HARDWARE.items()
        for gpu in [GpuKind(kind, spec.memory_bytes / 1e9, spec.compute_capability)]
        if (row := support(gpu, precision)) is not None
    }
    rows: list[Sequence[Value]] = [
        [precision.value, *(cells.get((precision.value, kind), "no") for kind in HARDWARE)]
        for precision in Precision
    ]
    return Section(
        "Hardware: formats of weights that a GPU lacks",
        [
            "What vLLM and Ollama (gguf) run on each kind of GPU, by its compute capability: the table that Headway's planner"
            " uses (policies/placement/hardware_support.py has its sources)."
        ],
        [Results("Formats of weights by GPU", ("format", *HARDWARE), rows)],
        [
            charts.grid(
                "hardware_formats",
                "Formats of weights that run on each kind of GPU",
                [each.value for each in Precision],
                list(HARDWARE),
                cells,
            )
        ],
    )
