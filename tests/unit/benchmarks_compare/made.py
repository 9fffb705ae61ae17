"""Runs made up from a seed, for tests of what is reported about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.compare.report import report
from benchmarks.compare.summary import summary_of
from benchmarks.simulator.outcomes import COLUMNS, OUTCOMES, Gaps, LoadSample, Result, Timeline

INSTANCES = ("h100-0", "l4-0")
MODELS = ("small", "large")
_ANSWERED = ("ok", "late", "budget_exhausted_mid_decode")
_SERVED = (*_ANSWERED, "expired_mid_decode")


def result(outcomes: Sequence[str], seed: int = 0, rate_per_s: float = 10.0, ttft_s: float = 0.2) -> Result:
    """A simulation of requests that ended so. Those that are `ok` met their SLO, `late` ones did not, every
    seventh had none; columns are consistent with the outcome."""
    random = np.random.default_rng(seed)
    count = len(outcomes)
    names = np.array(outcomes)
    answered, served = np.isin(names, _ANSWERED), np.isin(names, _SERVED)
    tokens = np.where(served, random.integers(1, 300, count), 0).astype(np.int32)
    ttft = np.where(served, random.lognormal(np.log(ttft_s), 0.5, count), np.nan)
    tpot = np.where(served & (tokens > 1), random.uniform(0.01, 0.05, count), np.nan)
    met = np.where(np.arange(count) % 7 == 6, 2, names == "ok").astype(np.uint8)
    columns: dict[str, Any] = {
        "index": np.arange(count),
        "arrival_s": np.cumsum(random.exponential(1 / rate_per_s, count)),
        "outcome": np.array([OUTCOMES.index(name) for name in outcomes], np.uint8),
        "met": met,
        "hard": np.zeros(count, np.uint8),
        "instance": np.where(served, random.integers(0, 2, count), len(INSTANCES)).astype(np.uint16),
        "model": np.where(served, random.integers(0, 2, count), len(MODELS)).astype(np.uint16),
        "attempts": np.where(served, random.integers(1, 3, count), 0).astype(np.uint8),
        "hedged": (np.arange(count) % 11 == 5).astype(np.uint8),
        "prompt_tokens": random.integers(1, 3000, count).astype(np.int32),
        "output_tokens": tokens,
        "ttft_s": ttft,
        "tpot_s": tpot.astype(np.float32),
        "e2e_s": np.where(served, ttft + np.nan_to_num(tpot) * (tokens - 1), 0.1),
        "queue_wait_s": random.uniform(0, 0.1, count).astype(np.float32),
        "cost_usd": np.where(served, tokens * 1e-6, 0.0),
        "max_cost_usd": np.full(count, np.nan, np.float32),
        "budget_overrun_usd": np.full(count, np.nan, np.float32),
        "quality": np.where(answered, random.uniform(0.4, 0.9, count), np.nan).astype(np.float32),
        "slo_ttft_s": np.where(met == 2, np.nan, 1.0 + np.arange(count) % 2).astype(np.float32),
        "slo_tpot_s": np.where(met == 2, np.nan, 0.05).astype(np.float32),
        "slo_e2e_s": np.full(count, np.nan, np.float32),
        "predicted_ttft_s_p50": (ttft * 1.1).astype(np.float32),
        "predicted_ttft_s_p95": (ttft * random.choice([0.5, 2.0], count, p=[0.1, 0.9])).astype(np.float32),
        "predicted_e2e_s_p50": np.full(count, 2.0, np.float32),
        "p_miss": np.full(count, 0.1, np.float32),
        "propensity": np.ones(count, np.float32),
    }
    assert list(columns) == list(COLUMNS)
    timeline = Timeline()
    for moment in range(500):
        timeline.add(
            [
                LoadSample(float(moment), 0, moment % 9, 1, 0, 0.25),
                LoadSample(float(moment), 1, 2, 2, 0, None),
            ]
        )
    gaps = Gaps()
    for gap_s, times in ((0.01, 90), (0.02, 9), (0.5, 1)):
        gaps.add(gap_s, times)
    return Result(INSTANCES, MODELS, columns, timeline, gaps, (1e-4, 2e-4, 3e-4), 0.5, 60.0, 1234)


def outcomes(count: int, ok: float, seed: int = 0) -> list[str]:
    """`ok` of them in share are so, the rest are of all kinds."""
    random = np.random.default_rng(seed)
    others = [name for name in OUTCOMES if name != "ok"]
    return ["ok" if random.random() < ok else others[random.integers(len(others))] for _ in range(count)]


def run(policy: str, rate_per_s: float, seed: int | None, ok: float, ttft_s: float = 0.2) -> dict[str, Any]:
    """One run of a report."""
    number = 1000 * (seed or 0) + int(10 * rate_per_s)
    summary = summary_of(result(outcomes(300, ok, number), number, rate_per_s, ttft_s))
    return {
        "name": f"{policy}@{rate_per_s:g}#{seed}",
        "policy": policy,
        "rate_per_s": rate_per_s,
        "seed": seed,
        **summary,
    }


#: The share of ok answers by policy at 5, 10 and 20 requests/s.
SHARES: Mapping[str, tuple[float, float, float]] = {
    "round_robin": (0.99, 0.6, 0.2),
    "random": (0.98, 0.5, 0.1),
    "slo": (1.0, 0.97, 0.5),
}


def runs(
    shares: Mapping[str, tuple[float, ...]] = SHARES, seeds: Iterable[int | None] = (0, 1, 2)
) -> list[dict[str, Any]]:
    """A comparison of policies over rates and seeds."""
    return [
        run(policy, rate, seed, share)
        for seed in seeds
        for policy, own in shares.items()
        for rate, share in zip((5.0, 10.0, 20.0), own, strict=False)
    ]


_LENGTHS = {
    "count": 300,
    "mean": 500.0,
    "p50": 400.0,
    "p90": 900.0,
    "p95": 950.0,
    "p99": 990.0,
    "max": 1000.0,
}
ABOUT: Mapping[str, Any] = {
    "model": "auto",
    "slo": None,
    "command": "headway compare --out 'a <b>'",
    "workload": {
        "header": {
            "source": "made <up>",
            "licence": None,
            "seed": 3,
            "cuts": {"limit": 300},
            "length_wins": None,
        },
        "described": {
            "requests": 300,
            "gap_cv": 1.0,
            "prompt_tokens": _LENGTHS,
            "output_tokens": _LENGTHS,
            "with_slo": 257,
            "with_budget": 0,
        },
    },
    "fleet": [
        {"instance": "h100-0", "model": "small", "kind": "vllm", "hardware": "h100-80g", "usd_per_hour": 4.0},
        {"instance": "l4-0", "model": "large", "kind": "vllm", "hardware": "l4", "usd_per_hour": None},
    ],
}


def oracles() -> list[dict[str, Any]]:
    """What oracles say of two of the seeds."""
    return [
        {
            "rate_per_s": rate,
            "seed": seed,
            "goodput_upper_bound_per_s": rate,
            "attainment_upper_bound": 1.0,
            "clairvoyant": {"attainment": 0.95, "goodput_per_s": 0.95 * rate},
            "quality_cost": [
                {"cost_usd_per_request": 0.0002, "quality": 0.8},
                {"cost_usd_per_request": 0.0001, "quality": 0.6},
            ],
        }
        for rate in (5.0, 10.0, 20.0)
        for seed in (0, 1)
    ]


def made_report(**changes: Any) -> dict[str, Any]:
    """The report of `runs()`."""
    options: dict[str, Any] = {"about": ABOUT, "complete": True, "oracles": oracles(), **changes}
    return report(options.pop("runs", None) or runs(), **options)
