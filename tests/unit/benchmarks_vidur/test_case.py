"""The trace and the tables that Vidur reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine import profile
from backends.engine.models import MODELS
from benchmarks.vidur.case import (
    KV_STEP_TOKENS,
    PROFILE,
    TraceRequest,
    as_vidur,
    operators,
    read_trace,
    trace,
    write_trace,
)

LAYERS = MODELS["llama-3.1-8b"].layers
MAX_TOKENS = 2048


def tables() -> dict[str, dict[tuple[float, ...], float]]:
    """Each operator's times by key, in seconds of a whole step, as Vidur adds them up."""
    return {
        name: {tuple(key): milliseconds * LAYERS / 1e3 for *key, milliseconds in rows}
        for name, rows in operators(MAX_TOKENS).items()
    }


def test_a_trace_has_the_rate_and_lengths_asked_for() -> None:
    made = trace(4000, 8.0, seed=1)
    assert made == trace(4000, 8.0, seed=1)
    assert made != trace(4000, 8.0, seed=2)
    assert made[-1].arrival_s == pytest.approx(4000 / 8.0, rel=0.05)
    assert sorted(each.arrival_s for each in made) == [each.arrival_s for each in made]
    assert sorted(each.prompt_tokens for each in made)[2000] == pytest.approx(500, rel=0.05)
    assert sorted(each.output_tokens for each in made)[2000] == pytest.approx(150, rel=0.05)
    assert max(each.prompt_tokens for each in made) <= 3000
    assert max(each.output_tokens for each in made) <= 1000


def test_a_trace_file_reads_back_the_same(tmp_path: Path) -> None:
    made = trace(50, 3.0, seed=4)
    write_trace(made, tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv") == made


def test_a_prefill_costs_in_vidur_what_it_costs_here() -> None:
    found, engine = tables(), profile(PROFILE)
    chunk = 512
    price_s = sum(times[(chunk,)] for times in found.values() if (chunk,) in times)
    price_s += found["attn_prefill"][(chunk, chunk)]
    assert price_s == pytest.approx(engine.step_s(chunk, 0, 0, chunk * (chunk + 1) / 2))


def test_a_chunk_pays_for_the_context_before_it() -> None:
    found, engine = tables(), profile(PROFILE)
    chunk, before = 256, 1024
    price_s = sum(times[(chunk,)] for times in found.values() if (chunk,) in times)
    price_s += found["attn_prefill"][(before + chunk, chunk)]
    assert price_s == pytest.approx(engine.step_s(chunk, 0, 0, chunk * (before + (chunk + 1) / 2)))


def test_a_decode_step_costs_in_vidur_what_it_costs_here_at_the_middle_of_a_table_step() -> None:
    found, engine = tables(), profile(PROFILE)
    seqs, kv_entry = 64, 1024
    price_s = sum(times[(seqs,)] for times in found.values() if (seqs,) in times)
    price_s += found["attn_decode"][(seqs, kv_entry)]
    assert price_s == pytest.approx(engine.step_s(0, seqs, seqs * (kv_entry - KV_STEP_TOKENS / 2)))


def test_the_tables_reach_as_far_as_the_longest_request(tmp_path: Path) -> None:
    case = as_vidur([TraceRequest(0.0, 3000, 1000), TraceRequest(1.0, 5, 5)], 2, tmp_path / "trace.csv")
    assert case["max_request_tokens"] == 4032
    assert max(kv for kv, _, _ in case["operators"]["attn_prefill"]) == 4032
    assert max(tokens for tokens, _ in case["operators"]["mlp_up_proj"]) == 4032
    assert max(seqs for seqs, _, _ in case["operators"]["attn_decode"]) == case["max_seqs"]


def test_the_tables_hold_a_full_step_of_short_requests(tmp_path: Path) -> None:
    case = as_vidur([TraceRequest(0.0, 10, 10)], 1, tmp_path / "trace.csv")
    assert case["max_request_tokens"] == case["max_batched_tokens"]
    assert case["blocks"] == profile(PROFILE).kv_capacity_tokens // 16
