"""Learning of the forests: scikit-learn's trees as arrays, rows by load, and p90s that hold."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from predictors.learned.artifact import Artifact, to_bytes
from predictors.learned.trees import TREE_FEATURES, TreeModel
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.replay import FORESTS, episodes
from predictors.training.trees import Settings, TreeRows, arrays_of, by_load, fit, rows_of, train
from router.core.profile import EngineProfile
from tests.unit.predictors_training.latency_runs import served

PROFILE = EngineProfile("made", 0.0, 5e-3, 1e-3, 0.0, 0.0, 100_000)
SMALL = Settings(trees=20, rate=0.2)


def profiled(data: Dataset) -> Dataset:
    runs = tuple(replace(run, profile_values=asdict(PROFILE)) for run in data.runs)
    return replace(data, runs=runs)


def test_arrays_predict_as_scikit_learn_does() -> None:
    draw = np.random.default_rng(1)
    features = draw.normal(size=(800, len(TREE_FEATURES)))
    actual = np.stack(
        [features[:, 0] + draw.normal(size=800), np.abs(features[:, 3] * features[:, 5])], axis=1
    )
    rows = TreeRows(features, actual, np.repeat("made", 800))
    settings = Settings(trees=30, depth=5)
    forests = [fit(rows, np.arange(800), time, settings, 1) for time in range(2)]
    model = TreeModel.load(Artifact("trees", TREE_FEATURES, arrays_of(forests, settings.depth)))
    unseen = draw.normal(size=(300, len(TREE_FEATURES)))
    expected = np.stack([forest.predict(unseen) for forest in forests], axis=1)
    np.testing.assert_allclose(model.predict(unseen), expected, atol=1e-5)


def test_a_usual_load_does_not_drown_a_rare_one() -> None:
    features = np.zeros((1000, len(TREE_FEATURES)))
    features[:10, TREE_FEATURES.index("awaiting")] = np.log1p(20)
    features[10:20, TREE_FEATURES.index("kv_held")] = 0.9
    chosen = by_load(features, 50, seed=1)
    assert list(chosen[:20]) == list(range(20))
    assert len(chosen) == 70
    assert list(by_load(features, 50, seed=1)) == list(chosen)


def test_forests_learn_what_a_profile_does_not_tell() -> None:
    found = profiled(served(levels=6, requests=150))
    held_out = found.keep(run=lambda run: run.level in ("2", "5"))
    learned = found.keep(run=lambda run: run.level not in ("2", "5"))
    artifact = train(learned, settings=SMALL)
    assert to_bytes(artifact) == to_bytes(train(learned, settings=SMALL))
    assert artifact.about["requests"] == {"made": 600}
    seen = list(episodes(held_out, trees=TreeModel.load(artifact)))
    actual = np.concatenate([each.actual for each in seen])
    predicted = np.concatenate([each.predicted[FORESTS] for each in seen])
    assert 0.8 < np.mean(actual[:, 0] <= predicted[:, 0]) <= 1.0
    bases = np.concatenate([each.tree_bases for each in seen])
    assert np.abs(predicted - actual)[:, 1].mean() < 0.4 * np.abs(bases - actual)[:, 1].mean()


def test_a_request_that_was_given_up_counts_with_its_wait() -> None:
    rows = rows_of(list(episodes(profiled(served(given_up=True)))))
    assert np.isfinite(rows.actual[:, 0]).all()
    assert np.isnan(rows.actual[:, 1]).sum() == 24


def test_what_cannot_be_learned_from_is_refused() -> None:
    with pytest.raises(DatasetError, match="no run with an engine profile"):
        train(served())
    with pytest.raises(DatasetError, match="too few"):
        train(profiled(served(levels=2)))
