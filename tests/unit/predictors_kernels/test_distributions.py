"""Arrays of distributions answer as each of them would alone."""

from __future__ import annotations

from random import Random
from statistics import NormalDist

import numpy as np
import pytest

from predictors.kernels import ResidualWindow
from predictors.kernels.reference.misses import LogErrors
from predictors.kernels.reference.normal import beyond, scores
from predictors.online.prompt_caches import SessionIndex
from tests.unit.predictors_kernels.one_distribution import Distribution


def test_normal_scores_are_the_standard_librarys() -> None:
    rng, normal = Random(1), NormalDist()
    shares = [rng.random() for _ in range(500)] + [10.0 ** -rng.uniform(0.1, 15.0) for _ in range(500)]
    shares += [1.0 - share for share in shares if share > 1e-12]
    found = scores(np.array(shares))
    assert found == pytest.approx([normal.inv_cdf(share) for share in shares], rel=1e-12, abs=1e-12)
    assert scores(np.array([[0.5, 0.9]])).shape == (1, 2)
    assert beyond(np.array([0.0, 1.0, -40.0])) == pytest.approx([0.5, 1.0 - normal.cdf(1.0), 1.0])


def test_windows_and_quantiles_are_evaluated_together() -> None:
    rng = Random(2)
    windows, modelled, single = [], [], []
    for number in range(12):
        if number % 3:
            window = ResidualWindow(0.35, 0.5)
            for _ in range(rng.randrange(80)):
                window.observe(rng.gauss(0.2, 0.4))
            windows.append(window)
            single.append(window)
        else:
            quantiles = sorted(rng.gauss(0.0, 0.5) for _ in range(5))
            windows.append(None)
            modelled.append(quantiles)
            single.append(Distribution(quantiles))
    errors = LogErrors(windows, np.array(modelled))
    residuals = [rng.gauss(0.0, 1.5) for _ in single]
    exceeded = [each.exceed(residual) for each, residual in zip(single, residuals, strict=True)]
    assert errors.exceed(np.array(residuals)) == pytest.approx(exceeded, rel=1e-12)
    shares = [sorted(rng.random() for _ in range(3)) for _ in single]
    found = errors.quantiles(np.array(shares))
    for row, each, wanted in zip(found, single, shares, strict=True):
        if isinstance(each, ResidualWindow):
            expected = each.quantiles(wanted)
        else:
            expected = [each.quantile(share) for share in wanted]
        assert row == pytest.approx(expected, rel=1e-12)
    assert errors.exceed(np.full(len(single), np.inf)) == pytest.approx(0.0)
    assert errors.exceed(np.full(len(single), -np.inf)) == pytest.approx(1.0)


def test_sessions_are_forgotten_least_recently_used_first() -> None:
    index = SessionIndex(max_sessions=2)
    for session in ("a", "b", "a", "c"):
        index.add("i", session, 10.0)
    assert [index.held_tokens("i", each) for each in "abc"] == [10.0, 0.0, 10.0]
    index.add("i", "a", 25.0)
    assert index.held_tokens("i", "a") == 25.0
    assert index.held_tokens("j", "a") == 0.0
