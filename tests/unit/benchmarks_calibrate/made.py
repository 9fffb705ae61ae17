"""Measurements made with the engine model itself, so that the truth is known, and the command that fits them."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from benchmarks.calibrate.errors import simulate
from benchmarks.calibrate.measured import Level, Measured
from benchmarks.calibrate.profile import Constants
from router.cli import main
from tests.engine_profiles import profile

TRUTH = Constants(
    profile(
        "truth",
        overhead_s=2e-3,
        floor_s=8e-3,
        per_token_s=6e-5,
        per_kv_token_s=8e-8,
        per_pair_s=1e-9,
        per_token_extra_s=3e-6,
        max_batched_tokens=512,
        max_seqs=16,
        per_seq_s=4e-4,
    ),
    client_overhead_s=4e-3,
    client_per_stream_s=5e-5,
)
LIMITS = {"max_batched_tokens": (512,), "max_seqs": (16,), "kv_capacity_tokens": (100_000,)}


def level(rate_per_s: float, count: int = 80, noise: float = 0.0, truth: Constants = TRUTH) -> Level:
    """Poisson arrivals served by `truth`; each time is off by a normal `noise` in logarithms."""
    rng = Random(f"{rate_per_s}")
    at_s, rows = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        rows.append(Measured(at_s, round(math.exp(rng.uniform(3, 7))), rng.randint(8, 120), None, None))
    measured = []
    for one in simulate(truth, rows):
        ttft_s = one.ttft_s * math.exp(rng.gauss(0, noise))
        decode_s = (one.e2e_s - one.ttft_s) * math.exp(rng.gauss(0, noise))
        measured.append(replace(one, ttft_s=ttft_s, e2e_s=ttft_s + decode_s))
    return Level(f"{rate_per_s:g}", tuple(measured))


def calibrate(*words: str) -> int:
    """The exit status of `headway calibrate`."""
    return main(["calibrate", *words])
