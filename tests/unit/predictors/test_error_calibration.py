"""The latency model's errors: read as a distribution, corrected by what comes, or not believed."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from predictors.calibration import Error, GroupCalibration, Trust, learned_error
from predictors.residuals import ResidualWindow


def window(sd: float = 1.0, count: int = 2000) -> ResidualWindow:
    made = ResidualWindow(0.3, 1.0)
    rng = Random(1)
    for _ in range(count):
        made.observe(rng.gauss(0.0, sd))
    return made


def test_without_shift_and_spread_an_error_is_its_window() -> None:
    plain = window(0.4)
    error = Error(plain)
    assert error.factors() == (plain.median_factor, plain.p95_factor, plain.mean_factor)
    for probability in (0.1, 0.5, 0.95):
        assert error.quantile(probability) == plain.quantile(probability)
        assert error.exceed(error.quantile(probability)) == pytest.approx(1 - probability, abs=0.02)


def test_a_shifted_and_spread_error_goes_by_its_own_scale() -> None:
    error = Error(window(), shift=0.7, lower=0.1, upper=0.3)
    median, p95, mean = error.factors()
    assert median == pytest.approx(exp(0.7), rel=0.05)
    assert p95 == pytest.approx(exp(0.7 + 0.3 * 1.645), rel=0.1)
    assert median < mean < p95
    assert error.quantile(0.05) == pytest.approx(0.7 - 0.1 * 1.645, abs=0.05)
    for residual in (0.5, 0.69, 0.7, 0.71, 1.3):
        z = error.z_of(residual)
        assert 0.7 + (0.3 if z > 0 else 0.1) * z == pytest.approx(residual)
        assert error.exceed(residual) == error.window.exceed(z)


def test_quantiles_of_the_model_become_median_and_spreads() -> None:
    group = GroupCalibration(3, 3)
    error = learned_error(group.ttft, 1, 0.5, [-0.12816, 0.0, 0.3, 0.32898, 0.5])
    assert error.shift == pytest.approx(0.5)
    assert error.lower == pytest.approx(0.1, rel=1e-3)
    assert error.upper == pytest.approx(0.2, rel=1e-3)
    sure = learned_error(group.ttft, 1, 0.0, [0.2] * 5)
    assert 0 < sure.lower == sure.upper < 0.01  # never without any spread


def test_coverage_becomes_nominal_whatever_the_model_says() -> None:
    """The model is half as wide as it should be and off by a factor; after learning its 95 % hold."""
    rng = Random(3)
    group = GroupCalibration(3, 3)
    quantiles = [-0.1, 0.0, 0.1, 0.128, 0.2]
    within = 0
    for number in range(9000):
        error = learned_error(group.ttft, 0, 0.0, quantiles)
        residual = rng.gauss(0.5, 0.2)
        if number >= 4000:
            within += residual <= error.quantile(0.95)
        group.ttft.observe(0, error.z_of(residual))
    assert within / 5000 == pytest.approx(0.95, abs=0.015)


def test_an_alarm_when_the_models_quantiles_do_not_hold_and_its_end() -> None:
    trust = Trust()
    for _ in range(100):
        trust.saw(0.5, (0.0, 0.2), (0.4, 0.7))
    assert not trust.believed
    assert trust.alarms == 1
    for _ in range(600):
        trust.saw(0.0, (0.0, 0.2), (0.4, 0.7))
    assert trust.believed
    assert trust.alarms == 1


def test_an_alarm_when_the_physical_estimate_is_better() -> None:
    trust = Trust()
    for _ in range(100):
        trust.saw(0.0, (-0.5, 2.0), (0.0, 0.1))
    assert trust.learned.ttft_p95 == 1.0
    assert not trust.believed
    told = trust.as_dict()
    assert told["believed"] is False
    assert told["ttft_loss"] > told["physical_ttft_loss"]  # type: ignore[operator]


def test_few_observations_raise_no_alarm() -> None:
    trust = Trust()
    for _ in range(30):
        trust.saw(0.5, (0.0, 0.2), (0.4, 0.7))
    assert trust.believed
