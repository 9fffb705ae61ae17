"""How much the latency model counts against the physical estimate."""

from __future__ import annotations

import random

import pytest

from predictors.kernels import ModelWeight
from predictors.kernels.levels import TAUS
from predictors.kernels.reference import quantiles
from predictors.kernels.reference.quantiles import FIRST_WEIGHT

SPREAD = (-0.13, 0.0, 0.13, 0.17, 0.24)  # of a normal distribution of deviation 0.1, about


@pytest.fixture(params=[ModelWeight, quantiles.ModelWeight])
def weight(request: pytest.FixtureRequest) -> ModelWeight:
    return request.param()


def predicted(physical: float, model: float) -> tuple[float, ...]:
    """The quantiles of what served, and of both around these medians."""
    return tuple(median + by for median in (0.0, physical, model) for by in SPREAD)


def learn(weight: ModelWeight, physical: float, model: float, times: int) -> None:
    draw = random.Random(1)
    for _ in range(times):
        weight.learn(predicted(physical, model), draw.gauss(0.0, 0.1))


def test_the_one_that_predicts_best_has_the_larger_weight(weight: ModelWeight) -> None:
    assert len(SPREAD) == len(TAUS)
    assert weight.value == FIRST_WEIGHT
    learn(weight, 0.0, 0.5, 60)
    assert weight.value < 0.15
    learn(weight, 0.5, 0.0, 60)
    assert weight.value > 0.95


def test_while_both_are_as_good_the_weight_stays(weight: ModelWeight) -> None:
    learn(weight, 0.2, 0.2, 100)
    assert weight.value == pytest.approx(FIRST_WEIGHT)


def test_what_was_wrong_for_long_counts_again_soon(weight: ModelWeight) -> None:
    learn(weight, 1.0, 0.0, 2000)
    learn(weight, 0.0, 1.0, 50)
    assert weight.value < 0.2


def test_scales_do_not_matter() -> None:
    """Losses are relative to their own mean, so a noisy instance is learned as fast as a quiet one."""
    quiet, noisy = ModelWeight(), ModelWeight()
    for at in range(20):
        actual = (at * 7 % 10 - 4.5) / 50.0
        quiet.learn(predicted(0.3, 0.1), actual)
        noisy.learn(tuple(10.0 * each for each in predicted(0.3, 0.1)), 10.0 * actual)
    assert quiet.value == pytest.approx(noisy.value)
    assert quiet.value != pytest.approx(FIRST_WEIGHT, abs=0.01)


@pytest.mark.parametrize("actual", [-30.0, 30.0])
def test_a_value_beyond_everything_is_survived(weight: ModelWeight, actual: float) -> None:
    learn(weight, 0.0, 0.0, 200)
    for _ in range(20):
        weight.learn((0.0,) * 5 + (30.0,) * 5 + (-30.0,) * 5, actual)
        assert 0.0 < weight.value < 1.0
