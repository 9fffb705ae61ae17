from __future__ import annotations

from typing import Any

import pytest

from predictors.kernels.reference.estimates import is_unloaded, physical_estimate
from predictors.kernels.step_costs import GENERIC_PROFILE, PrefillRate, StepCosts
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import LoadReport
from tests.engine_profiles import profile

PROFILE = profile(overhead_s=2e-3, floor_s=10e-3, per_token_s=1e-4, per_kv_token_s=1e-7, max_seqs=8, slots=2)


def instance(**state: Any) -> Instance:
    made = Instance("i", "vllm", {})
    for name, value in state.items():
        setattr(made, name, value)
    made.recount()
    return made


def estimated(
    at: Instance,
    *,
    profile: EngineProfile = PROFILE,
    speed: float = 1.0,
    prompt: float = 400.0,
    cached: float = 0.0,
    rate: float = 0.0,
) -> tuple[float, float, int, int, float, float]:
    costs = StepCosts(profile, at.fixed_slots, speed)
    return physical_estimate(costs, at, prompt, cached, at.pending_prefill_tokens, 200.0, 200.0, 500.0, rate)


def test_idle_instance_takes_its_own_prefill_and_lone_steps() -> None:
    ttft_s, tpot_s, ttft_stratum, tpot_stratum, step_s, held = estimated(instance())
    assert step_s == tpot_s
    assert held == pytest.approx((400 + 100) / PROFILE.kv_capacity_tokens)
    assert ttft_s == pytest.approx(PROFILE.prefill_s(400))
    assert tpot_s == pytest.approx(PROFILE.step_s(0, 1, 400 + 100))
    assert (ttft_stratum, tpot_stratum) == (0, 0)


def test_idle_ttft_floor_is_the_profiles_prefill() -> None:
    costs = StepCosts(PROFILE, False, 2.0)
    assert costs.idle_ttft_s(5000) == pytest.approx(PROFILE.prefill_s(5000) / 2)
    assert costs.idle_ttft_s(5000, 4000) == pytest.approx(PROFILE.prefill_s(5000, 4000) / 2)


def test_long_prompts_are_cut_into_chunks() -> None:
    assert estimated(instance(), prompt=5000.0)[0] == pytest.approx(PROFILE.prefill_s(5000))


def test_cached_tokens_need_no_prefill() -> None:
    assert estimated(instance(), prompt=1000.0, cached=900.0)[0] == pytest.approx(PROFILE.prefill_s(100))
    assert estimated(instance(), prompt=100.0, cached=100.0)[0] == pytest.approx(PROFILE.prefill_s(1))


def test_a_decoding_batch_adds_half_a_step_and_rides_along() -> None:
    ttft_s, _, stratum, tpot_stratum, *_ = estimated(instance(in_flight=5, context_tokens=2000))
    kv_tokens = 2000 - 5 * 100
    step_s = PROFILE.step_s(0, 5, kv_tokens)
    assert ttft_s == pytest.approx(step_s / 2 + PROFILE.step_s(400, 5, kv_tokens))
    assert (stratum, tpot_stratum) == (0, 1)


def test_prompts_ahead_come_first() -> None:
    waiting = instance(in_flight=3, awaiting_first_token=3, pending_prefill_tokens=6000)
    ttft_s, _, stratum, *_ = estimated(waiting)
    # Half of a full chunk under way, then the rest of 6,000 and our 400 tokens.
    chunk_s = PROFILE.step_s(2048, 0, 0)
    assert ttft_s == pytest.approx(chunk_s / 2 + 2 * chunk_s + PROFILE.step_s(6400 - 3 * 2048, 0, 0))
    assert stratum == 1


def test_ttft_grows_with_all_that_is_ahead() -> None:
    times = [
        estimated(instance(in_flight=n, awaiting_first_token=n, pending_prefill_tokens=500 * n))[0]
        for n in range(20)
    ]
    assert times == sorted(times)


def test_full_seats_wait_for_completions() -> None:
    free = estimated(instance(in_flight=7, context_tokens=3000))
    full = estimated(instance(in_flight=8, context_tokens=3000))
    fuller = estimated(instance(in_flight=12, context_tokens=3000, awaiting_first_token=4))
    step_s = PROFILE.step_s(0, 8, 3000 - 800)
    assert full[0] - free[0] == pytest.approx(200 * step_s / 8, rel=0.05)
    assert fuller[0] - full[0] == pytest.approx(4 * 200 * step_s / 8, rel=0.1)
    assert (free[2], full[2], fuller[2]) == (0, 2, 2)


def test_full_kv_memory_waits_too() -> None:
    roomy = estimated(instance(in_flight=4, context_tokens=90_000), prompt=4000.0)
    tight = estimated(instance(in_flight=4, context_tokens=99_900), prompt=4000.0)
    # 3,500 tokens too many: 3.5 % of what is held, and all of it is let go in about 200 steps.
    step_s = PROFILE.step_s(0, 4, 99_500)
    assert tight[0] - roomy[0] == pytest.approx(3500 / 99_500 * 200 * step_s, rel=0.1)
    assert (roomy[2], tight[2]) == (0, 2)


def test_work_of_others_is_seen_in_the_report() -> None:
    own = estimated(instance())
    others = estimated(instance(report=LoadReport(running=6, waiting=0)))
    loaded = estimated(instance(report=LoadReport(running=6, waiting=0, kv_usage=0.8)))
    assert others[0] > own[0]
    assert others[1] > own[1]
    assert loaded[1] - others[1] == pytest.approx((80_000 - 6 * 600) * PROFILE.per_kv_token_s)


def test_prefills_to_come_stretch_the_decode() -> None:
    at = instance(in_flight=5, context_tokens=2000)
    quiet, busy, flooded = (estimated(at, rate=rate)[1] for rate in (0.0, 3000.0, 1e9))
    # 3,000 tokens a second at 1e-4 s, less what fits under the weight-bound floor.
    extra_s = ((6 + 500) * 1e-4 - 10e-3) / 500
    assert busy == pytest.approx(quiet / (1 - 3000 * extra_s))
    assert flooded == pytest.approx(quiet / 0.1)


def test_ollama_has_slots() -> None:
    ollama = instance(in_flight=2, context_tokens=1000)
    ollama.fixed_slots = True
    assert estimated(ollama)[2] == 2
    assert estimated(instance(in_flight=2, context_tokens=1000))[2] == 0


def test_speed_compresses_all_times() -> None:
    at = instance(in_flight=12, awaiting_first_token=4, pending_prefill_tokens=3000, context_tokens=3000)
    slow, fast = estimated(at), estimated(at, speed=10.0)
    assert fast[0] == pytest.approx(slow[0] / 10)
    assert fast[1] == pytest.approx(slow[1] / 10)


def test_unloaded_models() -> None:
    unknown = instance()
    assert not is_unloaded(unknown, "llama3")
    known = instance(report=LoadReport(loaded_models=frozenset({"llama3:latest", "qwen:7b"})))
    assert not is_unloaded(known, "llama3")
    assert not is_unloaded(known, "qwen:7b")
    assert is_unloaded(known, "qwen:72b")


def test_prefill_rate_is_the_recent_mean_and_fades() -> None:
    rate = PrefillRate(horizon_s=10.0)
    assert rate.tokens_per_s(5.0) == 0.0
    for tick in range(1000):
        rate.add(50.0, tick * 0.1)
    assert rate.tokens_per_s(99.9) == pytest.approx(500.0, rel=0.02)
    assert rate.tokens_per_s(109.9) == pytest.approx(500.0 / 2.718, rel=0.02)
    rate.add(50.0, 90.0)  # late: it counts, and does not turn the clock back
    assert rate.tokens_per_s(99.9) == pytest.approx(505.0, rel=0.02)


def test_generic_profile_is_a_complete_one() -> None:
    assert 0 < GENERIC_PROFILE.step_s(0, 1, 100) < GENERIC_PROFILE.prefill_s(4000) < 10
