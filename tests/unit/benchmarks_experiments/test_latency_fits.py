"""What is fitted predicts as it would serve, and what is left out has no effect."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.datasets.emulated import emulate
from benchmarks.experiments import latency_fits
from benchmarks.experiments.latency_fits import FEATURES, LatencyFit, fit_lstm, fit_trees
from predictors.learned.latency import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES
from predictors.training.latency_fit import Settings
from predictors.training.replay import MODEL, Episode, episodes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_fits, "Settings", partial(Settings, epochs=1, head_epochs=1))
    monkeypatch.setattr(latency_fits, "_TREES", 3)


@pytest.fixture(scope="module")
def runs() -> list[Episode]:
    return list(episodes(emulate(seed=7, runs=2, requests=40), judge=True))


@pytest.mark.parametrize("fit", [fit_lstm, fit_trees])
def test_a_fit_predicts_what_it_serves(fit: type[LatencyFit], runs: list[Episode]) -> None:
    fitted = fit(runs, 1)
    served = episodes(emulate(seed=7, runs=2, requests=40), fitted.model())
    for each, again in zip(runs, served, strict=True):
        predicted = fitted(each)
        assert predicted.shape == (len(each.actual), 2, 5)
        assert (np.diff(predicted, axis=2) >= 0).all()
        np.testing.assert_allclose(again.predicted[MODEL], predicted, atol=1e-5)


@pytest.mark.parametrize("fit", [fit_lstm, fit_trees])
@pytest.mark.parametrize("left_out", FEATURES.values(), ids=FEATURES)
def test_what_is_left_out_has_no_effect(
    fit: type[LatencyFit], left_out: frozenset[str], runs: list[Episode]
) -> None:
    fitted = fit(runs, 1, left_out=left_out)  # type: ignore[call-arg]
    for each in runs:
        changed = replace(each, events=each.events.copy(), targets=each.targets.copy())
        changed.events[:, [at for at, name in enumerate(EVENT_FEATURES) if name in left_out]] += 3.0
        changed.targets[:, [at for at, name in enumerate(TARGET_FEATURES) if name in left_out]] += 3.0
        np.testing.assert_allclose(fitted(changed), fitted(each), atol=1e-5)


def test_groups_of_features_are_features() -> None:
    for left_out in FEATURES.values():
        assert left_out
        assert left_out < set(LATENCY_FEATURES)
