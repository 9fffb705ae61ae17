"""Online calibration of the latency model's quantiles."""

import math
import random

import numpy as np
import pytest

from predictors.kernels import Offsets
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.quantiles import QuantileErrors, calibrated, factors_of

TOLD = [-0.2, 0.0, 0.2, 0.26, 0.4]


def served(offsets: Offsets) -> list[float]:
    return [float(each) for each in calibrated(np.array(TOLD), np.array(offsets.values))]


def test_nothing_is_changed_before_anything_came():
    assert served(Offsets()) == TOLD


@pytest.mark.parametrize("shift", [-0.3, 0.0, 0.3])
def test_shares_become_right_whatever_is_predicted(shift: float):
    offsets, rng, below = Offsets(), random.Random(1), [0] * len(TAUS)
    for at in range(6000):
        quantiles = served(offsets)
        actual = rng.gauss(shift, 0.4)
        if at >= 2000:
            below = [count + (actual <= value) for count, value in zip(below, quantiles, strict=True)]
        offsets.learn(quantiles, actual)
    for share, tau in zip(below, TAUS, strict=True):
        assert share / 4000 == pytest.approx(tau, abs=0.02)


def test_requests_that_wait_make_the_steps_smaller():
    alone, queued = Offsets(), Offsets()
    alone.learn(TOLD, 0.3)
    queued.learn(TOLD, 0.3, 30.0)
    assert queued.values == pytest.approx([each / 4 for each in alone.values])


def test_calibrated_quantiles_do_not_cross():
    offsets = Offsets()
    offsets.values[:] = [9.0, 0.0, -9.0, 3.0, -3.0]
    found = served(offsets)
    assert found == sorted(found)


def test_a_distribution_has_its_quantiles_and_its_inverse():
    found = QuantileErrors(TOLD)
    assert found.quantiles(TAUS) == pytest.approx(TOLD, abs=1e-4)
    residuals = [-1.0, -0.2, 0.1, 0.3, 1.5]
    assert found.quantiles([1.0 - found.exceed(each) for each in residuals]) == pytest.approx(
        residuals, abs=1e-3
    )
    assert [found.exceed(each) for each in (-math.inf, math.inf)] == [1.0, 0.0]
    shares = [found.exceed(x / 10) for x in range(-30, 31)]
    assert shares == sorted(shares, reverse=True)
    median, p95, mean = factors_of(np.array(TOLD))
    assert (median, p95) == pytest.approx((1.0, math.exp(0.26)), rel=1e-4)
    assert median < mean < p95


def test_a_distribution_of_one_value_has_quantiles():
    found = QuantileErrors([0.1] * 5)
    assert found.exceed(0.0) == pytest.approx(1.0)
    assert found.exceed(0.2) == pytest.approx(0.0)
    assert found.quantiles([0.3]) == pytest.approx([0.1], abs=1e-4)
