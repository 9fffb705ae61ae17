"""The case both simulators run: one trace, one engine profile, some replicas behind round robin.

Vidur reads step times from tables of operator times. `operators` writes those tables from our own profile, so
both simulators price a step alike and what differs is how they simulate. Vidur rounds what it looks up:
a step's tokens to 8, prompt chunks to 32, KV tokens to KV_STEP_TOKENS, each upwards.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from backends.engine import profile
from backends.engine.models import MODELS

#: The engine, in our words and in Vidur's: an A100 with 80 GB and a Llama 3 with 8 billion weights.
PROFILE = "llama-3.1-8b@a100-80g"
_VIDUR_NAMES = {"model": "meta-llama/Llama-3-8B", "device": "a100", "node": "a100_dgx"}
#: Between two entries of Vidur's attention tables; its default is 256.
KV_STEP_TOKENS = 64
_CHUNK_STEP_TOKENS = 32
_TOKEN_STEP = 8
#: Vidur's trace reader keeps the rows of one date.
_DATE = "2024-01-01"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: when it comes, and its lengths."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


def trace(count: int, rate_per_s: float, seed: int) -> list[TraceRequest]:
    """Poisson arrivals; log-normal lengths in the range of chat (medians of 500 and 150 tokens), prompts of at
    most 3,000 and outputs of at most 1,000 tokens."""
    rng = Random(seed)
    made = []
    now_s = 0.0
    for _ in range(count):
        now_s += rng.expovariate(rate_per_s)
        made.append(TraceRequest(now_s, _length(rng, 500, 0.9, 3000), _length(rng, 150, 0.8, 1000)))
    return made


def write_trace(requests: Sequence[TraceRequest], path: Path) -> None:
    """The CSV file of Vidur's trace replay."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Date", "Time", "PromptTokenCount", "CompletionTokenCount"])
        writer.writerows(
            [_DATE, repr(each.arrival_s), each.prompt_tokens, each.output_tokens] for each in requests
        )


def read_trace(path: Path) -> list[TraceRequest]:
    """What `write_trace` wrote."""
    with path.open(newline="") as file:
        return [
            TraceRequest(float(row["Time"]), int(row["PromptTokenCount"]), int(row["CompletionTokenCount"]))
            for row in csv.DictReader(file)
        ]


def as_vidur(requests: Sequence[TraceRequest], replicas: int, trace_file: Path) -> dict[str, Any]:
    """What `driver.py` reads."""
    engine = profile(PROFILE)
    longest = max(each.prompt_tokens + each.output_tokens for each in requests)
    # Vidur's tables of requests and of steps end at the same number of tokens.
    max_tokens = _up(max(longest, engine.max_batched_tokens), KV_STEP_TOKENS)
    return {
        **_VIDUR_NAMES,
        "trace": str(trace_file),
        "date": _DATE,
        "replicas": replicas,
        "block_tokens": engine.block_tokens,
        "blocks": engine.kv_capacity_tokens // engine.block_tokens,
        "max_seqs": engine.max_seqs,
        "max_batched_tokens": engine.max_batched_tokens,
        "max_request_tokens": max_tokens,
        "kv_step_tokens": KV_STEP_TOKENS,
        "operators": operators(max_tokens),
    }


def operators(max_tokens: int) -> dict[str, list[list[float]]]:
    """Vidur's tables to `max_tokens`: rows of key and milliseconds of one layer. All that a step costs beside
    attention stands under one operator, for Vidur only adds them up."""
    engine = profile(PROFILE)
    layer_ms = 1e3 / MODELS[PROFILE.partition("@")[0]].layers
    token_counts = range(_TOKEN_STEP, _up(max_tokens, _TOKEN_STEP) + 1, _TOKEN_STEP)
    kv_counts = range(0, max_tokens + 1, KV_STEP_TOKENS)
    chunks = range(_CHUNK_STEP_TOKENS, engine.max_batched_tokens + 1, _CHUNK_STEP_TOKENS)
    nothing: list[list[float]] = [[tokens, 0.0] for tokens in range(1, max_tokens + 1)]
    return {
        **dict.fromkeys(_FREE_OPERATORS, nothing),
        "mlp_up_proj": [[tokens, engine.step_s(tokens, 0, 0) * layer_ms] for tokens in token_counts],
        # The mean of what is rounded up to a table's entry is half a step below it.
        "attn_decode": [
            [seqs, kv, seqs * max(0, kv - KV_STEP_TOKENS / 2) * engine.per_kv_token_s * layer_ms]
            for seqs in range(1, engine.max_seqs + 1)
            for kv in kv_counts
        ],
        "attn_prefill": [
            [kv, chunk, _pairs(kv, chunk) * engine.per_pair_s * layer_ms]
            for kv in kv_counts
            for chunk in chunks
        ],
    }


_FREE_OPERATORS = (
    "attn_pre_proj",
    "attn_post_proj",
    "attn_rope",
    "attn_kv_cache_save",
    "mlp_down_proj",
    "mlp_act",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
)


def _pairs(kv_tokens: int, chunk: int) -> float:
    """(new, context) token pairs of a chunk with `kv_tokens` in memory at its end, its own included."""
    return chunk * (max(0, kv_tokens - chunk) + (chunk + 1) / 2)


def _length(rng: Random, median: float, sigma: float, most: int) -> int:
    return min(most, max(2, round(rng.lognormvariate(math.log(median), sigma))))


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
