from __future__ import annotations

from itertools import pairwise
from math import exp, log
from random import Random

import pytest

from predictors.kernels import ResidualWindow, Shrinkage, StratifiedResiduals
from predictors.kernels.reference.residuals import PRIOR_SIZE


def learned(mean: float, sd: float, count: int, seed: int = 1) -> ResidualWindow:
    rng = Random(seed)
    window = ResidualWindow(prior_sd=0.35, noise_sd=0.5)
    for _ in range(count):
        window.observe(rng.gauss(mean, sd))
    return window


def test_nothing_seen_is_wide_and_unbiased() -> None:
    window = ResidualWindow(prior_sd=0.35, noise_sd=0.5)
    assert window.median_factor == pytest.approx(1.0)
    assert window.p95_factor > 2.0
    assert window.exceed(0.0) == pytest.approx(0.5)
    assert 0.01 < window.exceed(1.0) < 0.2


def test_quantiles_and_tail_probabilities_of_the_data() -> None:
    window = learned(0.4, 0.2, 400)
    assert window.median_factor == pytest.approx(exp(0.4), rel=0.1)
    assert window.p95_factor == pytest.approx(exp(0.4 + 1.645 * 0.2), rel=0.12)
    assert window.mean_factor == pytest.approx(exp(0.4 + 0.02), rel=0.1)
    for z, share in ((-1.28, 0.9), (0.0, 0.5), (0.84, 0.2), (1.645, 0.05)):
        assert window.exceed(0.4 + 0.2 * z) == pytest.approx(share, abs=0.06)


def test_exceed_falls_from_one_to_zero_without_a_jump() -> None:
    window = learned(0.0, 0.3, 60)
    values = [window.exceed(-3.0 + 0.01 * step) for step in range(601)]
    assert all(high >= low for high, low in pairwise(values))
    assert values[0] > 0.999
    assert values[-1] < 0.001
    assert max(high - low for high, low in pairwise(values)) < 0.12


def test_quantile_and_exceed_are_inverse() -> None:
    window = learned(-0.2, 0.3, 100)
    for probability in (0.05, 0.3, 0.5, 0.8, 0.95):
        assert window.exceed(window.quantiles([probability])[0]) == pytest.approx(1 - probability, abs=1e-9)


def test_an_unknown_scale_is_taken_up_at_once_and_leaves_no_fat_tail() -> None:
    window = ResidualWindow(prior_sd=1.2, noise_sd=0.5)
    rng = Random(4)
    for _ in range(40):
        window.observe(rng.gauss(3.0, 0.1))
    assert window.median_factor == pytest.approx(exp(3.0), rel=0.1)
    assert window.p95_factor < 1.5 * window.median_factor
    assert window.exceed(3.0 + 0.7) < 0.03


def test_drift_is_followed() -> None:
    rng = Random(5)
    window = learned(0.0, 0.1, 500)
    for _ in range(300):
        window.observe(rng.gauss(1.0, 0.1))
    assert window.median_factor == pytest.approx(exp(1.0), rel=0.1)


def test_window_is_bounded_and_the_prior_leaves_it() -> None:
    window = ResidualWindow(prior_sd=0.35, noise_sd=0.5, memory=16)
    for _ in range(1000):
        window.observe(0.0)
    assert len(window.values) == 64
    assert not window._pseudo
    assert window.exceed(0.3) < 0.01
    few = learned(0.0, 0.1, 10)
    assert len(few._pseudo) < PRIOR_SIZE


def test_factors_lag_by_a_few_observations_and_at_first_by_none() -> None:
    rng = Random(9)
    window = ResidualWindow(prior_sd=0.35, noise_sd=0.5)
    for count in range(1, 1000):
        window.observe(rng.gauss(0.3, 0.2))
        if count < 32:
            assert window.median_factor == pytest.approx(exp(window.quantiles([0.5])[0]))
            assert window.p95_factor == pytest.approx(exp(window.quantiles([0.95])[0]))
        elif count > 100:
            assert window.median_factor == pytest.approx(exp(window.quantiles([0.5])[0]), rel=0.08)


def test_least_factor_bounds_what_was_seen() -> None:
    rng = Random(6)
    window = ResidualWindow(prior_sd=0.35, noise_sd=0.5)
    assert window.least_factor() < 0.4
    seen = [rng.gauss(0.2, 0.1) for _ in range(200)]
    for residual in seen:
        window.observe(residual)
    assert 0.7 * exp(min(seen)) < window.least_factor() < exp(sorted(seen)[4])


def test_a_stratum_speaks_for_itself_after_enough_observations() -> None:
    strata = StratifiedResiduals(2, prior_sd=0.35, noise_sd=0.5)
    for _ in range(100):
        strata.observe(0, 0.1)
    assert strata.windows[0] is strata.strata[0]
    assert strata.windows[1] is strata.pooled
    for _ in range(StratifiedResiduals.OWN_AFTER):
        strata.observe(1, 2.0)
    assert strata.windows[1].median_factor == pytest.approx(exp(2.0), rel=0.1)
    assert strata.windows[0].median_factor == pytest.approx(exp(0.1), rel=0.1)


def test_an_uninformative_estimate_is_drawn_in() -> None:
    rng = Random(7)
    shrinkage = Shrinkage()
    for _ in range(600):
        shrinkage.observe(0.02 * rng.lognormvariate(0, 0.4), 0.03 * rng.lognormvariate(0, 0.2))
    assert shrinkage.slope < 0.25
    assert shrinkage.shrunk(0.03) == pytest.approx(0.02 * 1.5**shrinkage.slope, rel=0.1)
    # What is far outside of all that was seen shows in full but for the part within reach.
    assert shrinkage.shrunk(0.2) > 0.07


def test_an_exact_estimate_is_left_alone() -> None:
    rng = Random(8)
    shrinkage = Shrinkage()
    assert shrinkage.shrunk(0.5) == 0.5
    for _ in range(600):
        estimate_s = 0.02 * rng.lognormvariate(0, 0.4)
        shrinkage.observe(estimate_s, 2 * estimate_s * rng.lognormvariate(0, 0.05))
    assert shrinkage.slope == pytest.approx(1.0, abs=0.05)
    assert log(shrinkage.shrunk(0.03) / 0.03) == pytest.approx(0.0, abs=0.05)
