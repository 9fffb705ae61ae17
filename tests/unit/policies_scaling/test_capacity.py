"""What an instance carries, and the margin."""

from __future__ import annotations

import pytest

from policies.scaling.capacity import needed_rate, slo_capacity
from router.core.types import Slo
from tests.unit.policies_scaling.cases import pool

LOOSE = Slo(ttft_s=10.0, tpot_s=0.5)


def test_it_fills_the_instance_if_the_slo_allows():
    found = slo_capacity(pool(concurrency=8, slo=LOOSE), 500, 200)
    assert found.concurrency == pytest.approx(8, rel=0.02)
    assert found.rate_per_s * found.service_s == pytest.approx(found.concurrency)


@pytest.mark.parametrize(
    ("tight", "loose"),
    [
        (Slo(tpot_s=0.08), Slo(tpot_s=0.1)),
        (Slo(ttft_s=0.6), Slo(ttft_s=2.0)),
        (Slo(e2e_s=16.0), Slo(e2e_s=20.0)),
    ],
)
def test_a_tighter_target_carries_less(tight, loose):
    few, many = (slo_capacity(pool(concurrency=64, slo=slo), 1000, 200) for slo in (tight, loose))
    assert 0 < few.rate_per_s < many.rate_per_s


def test_the_mean_step_keeps_the_tpot_target():
    one = pool(concurrency=64, slo=Slo(tpot_s=0.09))
    found = slo_capacity(one, 1000, 200)
    assert (found.service_s - 1000 * 0.09) / 200 < 0.09


def test_memory_bounds_it():
    one = pool(concurrency=64, slo=None)
    found = slo_capacity(one, 4000, 400)
    assert 4200 * found.concurrency < 1.3 * one.profile.kv_capacity_tokens


def test_a_target_out_of_reach_leaves_one_request_at_a_time():
    found = slo_capacity(pool(slo=Slo(ttft_s=0.001)), 1000, 200)
    assert found.concurrency == 1.0
    assert found.rate_per_s == pytest.approx(1 / found.service_s)


def test_short_answers_are_prefilled_one_after_another():
    found = slo_capacity(pool(slo=LOOSE), 2000, 1)
    assert 0.5 < found.rate_per_s * pool().profile.prefill_s(2000) < 1.0


def test_the_margin_grows_with_the_root():
    # 2 requests/s for 50 s are 100 at a time: ten are one standard deviation, 0.2 requests/s.
    assert needed_rate(2.0, 50.0, 1.0) == pytest.approx(2.2)
    assert needed_rate(2.0, 50.0, 2.0) == pytest.approx(2.4)
    assert needed_rate(200.0, 50.0, 1.0) == pytest.approx(202.0)
    assert needed_rate(0.0, 50.0, 1.0) == 0.0
