"""How much each of several predictions is heard."""

from __future__ import annotations

import random

import pytest

from predictors.kernels import Mixture
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.mixtures import EXPERTS, PRIOR

SPREAD = (-0.13, 0.0, 0.13, 0.17, 0.24)  # of a normal distribution of deviation 0.1, about


def predicted(*medians: float) -> tuple[float, ...]:
    """The quantiles of what served, and of each expert around these medians."""
    return tuple(median + by for median in (0.0, *medians) for by in SPREAD)


def heard(mixture: Mixture) -> dict[str, float]:
    return dict(zip(EXPERTS, mixture.weights, strict=True))


def learn(mixture: Mixture, medians: tuple[float, ...], times: int, actual: float = 0.0) -> None:
    draw = random.Random(1)
    for _ in range(times):
        mixture.learn(predicted(*medians), draw.gauss(actual, 0.1))


def test_at_first_the_prior_is_heard() -> None:
    assert len(SPREAD) == len(TAUS)
    assert Mixture().weights == pytest.approx(PRIOR)


@pytest.mark.parametrize("best", EXPERTS)
def test_the_expert_that_predicts_best_is_heard_most(best: str) -> None:
    mixture = Mixture()
    learn(mixture, tuple(0.0 if name == best else 0.5 for name in EXPERTS), 60)
    assert heard(mixture)[best] > 0.9


def test_experts_that_are_as_good_keep_their_shares() -> None:
    mixture = Mixture()
    learn(mixture, (0.0, 0.0, 0.0), 100)
    assert mixture.weights == pytest.approx(PRIOR, abs=1e-6)


def test_an_expert_that_becomes_right_is_heard_again_soon() -> None:
    mixture = Mixture()
    learn(mixture, (1.0, 1.0, 0.0), 500)
    assert heard(mixture)["trees"] > 0.9
    learn(mixture, (1.0, 0.0, 1.0), 30)
    assert heard(mixture)["network"] > 0.7


def test_scales_do_not_matter() -> None:
    """Losses are relative to their own mean, so a noisy instance is learned as fast as a quiet one."""
    quiet, noisy = Mixture(), Mixture()
    for at in range(20):
        actual = (at * 7 % 10 - 4.5) / 50.0
        quiet.learn(predicted(0.0, 0.2, 0.3), actual)
        noisy.learn(tuple(10.0 * each for each in predicted(0.0, 0.2, 0.3)), 10.0 * actual)
    assert quiet.weights == pytest.approx(noisy.weights)
