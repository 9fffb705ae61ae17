"""The predictor against an engine in virtual time: errors shrink, and P(miss) comes true."""

from __future__ import annotations

from dataclasses import replace
from math import log
from random import Random
from statistics import mean, median

import pytest

from predictors.online.predictor import OnlinePredictor
from router.core.profile import EngineProfile
from router.core.types import Slo
from tests.unit.predictors_online.virtual_engine import TRUTH, Run, Seen


def ttft_error(seen: list[Seen]) -> float:
    """Median |ln(actual / predicted)| of TTFT."""
    return median(abs(log(one.ttft_s / (one.prediction.ttft_s_p50 or 0.0))) for one in seen)


def tpot_error(seen: list[Seen]) -> float:
    return median(
        abs(log(tpot_s / one.prediction.tpot_s))
        for one in seen
        if (tpot_s := one.tpot_s) and one.prediction.tpot_s
    )


def slower(times: float) -> EngineProfile:
    """TRUTH, with each step so many times as long."""
    parts = ("overhead_s", "floor_s", "per_token_s", "per_kv_token_s", "per_pair_s")
    return replace(TRUTH, **{name: times * getattr(TRUTH, name) for name in parts})


def interval(misses: list[bool], rng: Random) -> tuple[float, float]:
    """A 99 % bootstrap interval of the share of misses. Neighbours share their spell of load, so whole
    blocks of ten are drawn."""
    blocks = [misses[at : at + 10] for at in range(0, len(misses), 10)]
    shares = sorted(
        mean(miss for block in rng.choices(blocks, k=len(blocks)) for miss in block) for _ in range(400)
    )
    return shares[2], shares[-3]


@pytest.mark.parametrize(
    ("rate_per_s", "slo"),
    [
        (3.0, Slo(ttft_s=0.10)),
        (6.0, Slo(ttft_s=0.13)),
        (8.0, Slo(ttft_s=0.2)),
        (5.0, Slo(e2e_s=5.0)),
        (5.0, Slo(ttft_s=0.2, tpot_s=0.025, e2e_s=6.0)),
    ],
    ids=["ttft-light", "ttft-middle", "ttft-heavy", "e2e", "all"],
)
def test_p_miss_is_calibrated(rate_per_s: float, slo: Slo) -> None:
    run = Run(OnlinePredictor(), TRUTH)
    run.arrive(rate_per_s, 300, slo)
    seen = run.arrive(rate_per_s, 1500, slo)
    rng = Random(3)
    buckets: dict[int, list[Seen]] = {}
    for one in seen:
        buckets.setdefault(min(int((one.prediction.p_miss or 0.0) * 5), 4), []).append(one)
    for bucket in buckets.values():
        if len(bucket) < 50:
            continue
        low, high = interval([one.missed(slo) for one in bucket], rng)
        said = mean(one.prediction.p_miss or 0.0 for one in bucket)
        assert low - 0.08 <= said <= high + 0.08
    # In total, and far better than knowing the base rate alone where the state shows something.
    base = mean(one.missed(slo) for one in seen)
    assert mean(one.prediction.p_miss or 0.0 for one in seen) == pytest.approx(base, abs=0.06)
    brier = mean(((one.prediction.p_miss or 0.0) - one.missed(slo)) ** 2 for one in seen)
    assert brier < (0.5 if slo.e2e_s is None else 1.02) * base * (1 - base)


def test_coverage_of_quantiles() -> None:
    run = Run(OnlinePredictor(), TRUTH)
    run.arrive(5.0, 300, None)
    seen = run.arrive(5.0, 1500, None)
    within = [
        (
            one.ttft_s <= (one.prediction.ttft_s_p95 or 0.0),
            one.e2e_s <= (one.prediction.e2e_s_p50 or 0.0),
            one.e2e_s <= (one.prediction.e2e_s_p95 or 0.0),
            one.tokens <= (one.prediction.output_tokens_p90 or 0.0),
        )
        for one in seen
    ]
    ttft_p95, e2e_p50, e2e_p95, output_p90 = (mean(column) for column in zip(*within, strict=True))
    assert ttft_p95 == pytest.approx(0.95, abs=0.04)
    assert e2e_p50 == pytest.approx(0.5, abs=0.08)
    assert e2e_p95 == pytest.approx(0.95, abs=0.04)
    assert output_p90 == pytest.approx(0.9, abs=0.05)
    assert mean(one.prediction.e2e_s_mean or 0.0 for one in seen) == pytest.approx(
        mean(one.e2e_s for one in seen), rel=0.1
    )


def test_a_wrong_profile_is_corrected() -> None:
    seen = Run(OnlinePredictor(), slower(3.0)).arrive(4.0, 500, None)
    assert ttft_error(seen[:5]) > 0.6
    assert ttft_error(seen[-200:]) < 0.2
    assert tpot_error(seen[:5]) > 0.6
    assert tpot_error(seen[-200:]) < 0.2


def test_an_instance_without_a_profile_converges() -> None:
    slow = Run(OnlinePredictor(), None)
    slow.engine.profile = slower(6.0)  # the engine is much slower than the generic profile expects
    seen = slow.arrive(0.5, 400, None)
    assert ttft_error(seen[:2]) > 1.0
    assert ttft_error(seen[10:40]) < 0.5
    assert ttft_error(seen[-150:]) < 0.25
    assert tpot_error(seen[-150:]) < 0.25
