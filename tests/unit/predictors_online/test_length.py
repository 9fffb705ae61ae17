from __future__ import annotations

from math import exp
from random import Random
from statistics import mean, quantiles

import numpy as np
import pytest

from predictors.kernels.length_bins import EDGES, PRIOR_LOG_MEDIAN, PRIOR_SHARES
from predictors.online.length import LengthDistribution
from predictors.online.model_lengths import Lengths


def learned(lengths: list[int], cap: int | None = None) -> LengthDistribution:
    distribution = LengthDistribution()
    for tokens in lengths:
        seen = tokens if cap is None else min(tokens, cap)
        distribution.observe(seen, censored=cap is not None and seen == cap)
    return distribution


def below(distribution: LengthDistribution, tokens: float) -> float:
    """P(Y <= tokens)."""
    return float(np.interp(tokens, EDGES, distribution.curve[0]))


def lognormal(count: int, seed: int = 1) -> list[int]:
    rng = Random(seed)
    return [max(1, round(rng.lognormvariate(5.5, 0.7))) for _ in range(count)]


def test_prior_is_the_stated_log_normal() -> None:
    assert sum(PRIOR_SHARES) == pytest.approx(1.0)
    prior = LengthDistribution()
    assert prior.p50 == pytest.approx(exp(PRIOR_LOG_MEDIAN), rel=0.03)
    assert prior.p90 == pytest.approx(exp(PRIOR_LOG_MEDIAN + 1.2816 * 0.91), rel=0.03)
    assert prior.mean == pytest.approx(exp(PRIOR_LOG_MEDIAN + 0.91**2 / 2), rel=0.03)


def test_learned_quantiles_and_capped_means_are_those_of_the_data() -> None:
    lengths = lognormal(3000)
    distribution = learned(lengths)
    deciles = quantiles(lengths, n=10)
    assert distribution.p50 == pytest.approx(deciles[4], rel=0.05)
    assert distribution.p90 == pytest.approx(deciles[8], rel=0.05)
    assert distribution.mean == pytest.approx(mean(lengths), rel=0.05)
    for cap in (1, 50, 245, 1000):
        assert distribution.mean_below(cap) == pytest.approx(
            mean(min(length, cap) for length in lengths), rel=0.03
        )
        assert below(distribution, cap) == pytest.approx(mean(length <= cap for length in lengths), abs=0.02)


def test_quantile_and_distribution_function_are_inverse() -> None:
    distribution = learned(lognormal(500))
    for probability in (0.01, 0.2, 0.5, 0.77, 0.99):
        assert below(distribution, distribution.quantile(probability)) == pytest.approx(probability)


def test_far_ends_are_safe() -> None:
    distribution = learned([1, 1, 500_000])
    assert distribution.mean_below(1e9) == distribution.mean
    assert distribution.mean_below(0.25) == 0.25
    assert distribution.quantile(1.0) <= 300_000


def test_answers_cut_at_a_cap_do_not_hide_the_tail() -> None:
    lengths = lognormal(3000)
    true_p50 = quantiles(lengths, n=2)[0]
    blind = LengthDistribution()
    for tokens in lengths:
        blind.observe(min(tokens, 200))
    aware = learned(lengths, cap=200)
    assert blind.p50 < 0.85 * true_p50
    assert aware.p50 == pytest.approx(true_p50, rel=0.2)
    assert below(aware, 100) == pytest.approx(mean(length <= 100 for length in lengths), abs=0.02)


def test_the_weight_of_cut_answers_is_spread_whole() -> None:
    distribution = LengthDistribution()
    for number in range(9000):  # past a fading, and with several caps between two refreshes
        distribution.observe(50 * (number % 4 + 1), censored=True)
        assert distribution._weight <= 4096
    distribution._refresh()
    assert sum(distribution._counts) == pytest.approx(distribution._weight)
    assert below(distribution, 49) < 0.01


def test_old_answers_fade() -> None:
    distribution = learned([100] * 6000)
    for _ in range(12_000):
        distribution.observe(1000)
    assert distribution.p50 == pytest.approx(1000, rel=0.1)
    assert below(distribution, 200) < 0.25


def test_a_new_model_leans_on_its_family_then_speaks_for_itself() -> None:
    lengths = Lengths()
    for _ in range(500):
        lengths.of("llama-8b", "llama").observe_output(900, None, 1)
    relative = lengths.of("llama-70b", "llama").output
    stranger = lengths.of("qwen-7b", "qwen").output
    assert relative.p50 == pytest.approx(900, rel=0.15)
    assert stranger.p50 == pytest.approx(exp(PRIOR_LOG_MEDIAN), rel=0.05)
    for _ in range(100):
        lengths.of("llama-70b", "llama").observe_output(50, None, 1)
    assert lengths.of("llama-70b", "llama").output.p50 == pytest.approx(50, rel=0.15)


def test_choices_share_the_tokens() -> None:
    lengths = Lengths()
    for _ in range(200):
        lengths.of("m").observe_output(400, 4000, 4)
    assert lengths.of("m").output.p50 == pytest.approx(100, rel=0.15)


def test_prompt_ratio_is_learned() -> None:
    entry = Lengths().of("m")
    for estimate in (100, 400, 1000) * 40:
        entry.observe_prompt(estimate, round(estimate * 1.3))
    assert entry.prompt_ratio == pytest.approx(1.3, rel=0.02)
    before = entry.prompt_ratio
    entry.observe_prompt(0, 10)
    entry.observe_prompt(10, 0)
    assert entry.prompt_ratio == before


def test_the_chat_template_of_short_prompts_is_not_taken_for_text() -> None:
    entry = Lengths().of("m")
    for estimate in (3, 8000) * 100:
        entry.observe_prompt(estimate, estimate + 35)
    assert entry.prompt_ratio == pytest.approx(1.0, rel=0.2)
    assert entry.mean_prompt_tokens == pytest.approx(4036, rel=0.1)
