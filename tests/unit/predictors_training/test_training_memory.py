"""Learning of memory use: the truth from reports, and a model that beats the closed form or is not made."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.datasets.emulated import emulate
from predictors.learned.artifact import to_bytes
from predictors.learned.memory import MEMORY_FEATURES, MemoryModel
from predictors.training.dataset import Attempt, Dataset, DatasetError, Run, State
from predictors.training.memory import LEAST_GAIN, Settings, train
from predictors.training.memory_rows import mean_use, rows_of_runs


def attempt(start_s: float, end_s: float | None, how: str = "ok") -> Attempt:
    return Attempt("r", "m", start_s, 10, start_s, end_s, 5, ended_how=how)


def test_mean_use_is_the_area_under_the_reports() -> None:
    states = [State("r", 0.0, kv_usage=0.0), State("r", 10.0, kv_usage=1.0), State("r", 20.0, kv_usage=0.5)]
    lives = [(0.0, 10.0), (4.0, 6.0), (10.0, 20.0), (5.0, 15.0), (10.0, 10.5)]
    found = mean_use([attempt(*life) for life in lives], states)
    np.testing.assert_allclose(found, [0.5, 0.5, 0.75, (0.75 * 5 + 0.875 * 5) / 10, 0.9875])


def test_lives_of_which_too_little_is_known_have_none() -> None:
    states = [State("r", 0.0, kv_usage=0.2), State("r", 10.0, kv_usage=0.2)]
    lives = [
        attempt(-1.0, 5.0),
        attempt(8.0, 12.0),
        attempt(8.0, 12.1),
        attempt(11.0, 12.0),
        attempt(1.0, None),
    ]
    lives += [attempt(1.0, 2.0, "cancelled")]
    found = mean_use(lives, states)
    assert found[1] == pytest.approx(0.2)
    assert all(math.isnan(each) for index, each in enumerate(found) if index != 1)


def test_runs_without_reports_and_clusters_are_left_out() -> None:
    runs = (Run("r", "made", "i", "m"), Run("c", "made", "i", "m", replicas=2), Run("n", "made", "i", "m"))
    attempts = tuple(
        Attempt(run.id, "m", float(at), 10, at + 0.1, at + 1.0, 5) for run in runs for at in range(5)
    )
    states = tuple(State(run, float(at), 1, 0, 0.25) for run in ("r", "c") for at in range(8))
    states += tuple(State("n", float(at), 1, 0) for at in range(8))
    (rows,) = rows_of_runs(Dataset(runs=runs, attempts=attempts, states=states))
    assert rows.run.id == "r"
    assert rows.features.shape == (5, len(MEMORY_FEATURES))
    np.testing.assert_allclose(rows.actual, 0.25)
    np.testing.assert_allclose(rows.reported, 0.25)
    (blind,) = rows_of_runs(Dataset(runs=runs, attempts=attempts, states=states), kv_known=False)
    assert set(blind.features[:, MEMORY_FEATURES.index("kv_known")]) == {0.0}
    assert set(blind.reported) == {0.0}


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Engines that keep far more in KV memory than what is known of would need, each its own constant share."""
    runs = tuple(Run(f"r{at}", "made", f"i{at}", "m") for at in range(12))
    return Dataset(
        runs=runs,
        attempts=tuple(
            Attempt(run.id, "m", float(at), 10, at + 0.1, at + 3.0, 5) for run in runs for at in range(50)
        ),
        states=tuple(
            State(run.id, float(at), 3, 0, 0.3 + 0.03 * index)
            for index, run in enumerate(runs)
            for at in range(54)
        ),
    )


def test_the_same_data_give_the_same_bytes(data: Dataset) -> None:
    lines: list[str] = []
    one, other = (train(data, seed=3, settings=Settings(steps=200), progress=lines.append) for _ in range(2))
    assert to_bytes(one) == to_bytes(other)
    left_out = one.about["runs_left_out"]
    assert left_out["mae"] <= (1 - LEAST_GAIN) * left_out["closed_form_mae"]
    assert MemoryModel.load(one).predict(next(rows_of_runs(data)).features).shape
    assert any("runs left out" in line for line in lines)


def test_a_model_that_gains_nothing_is_not_made() -> None:
    """Emulated worlds of which too few are known to learn more than the closed form says."""
    with pytest.raises(DatasetError, match="the closed form serves"):
        train(emulate(seed=5, runs=16, requests=60), seed=3, settings=Settings(steps=5))


def test_too_little_data_is_refused() -> None:
    with pytest.raises(DatasetError, match="no run with answers and reports"):
        train(Dataset())
    with pytest.raises(DatasetError, match="too few"):
        train(emulate(seed=5, runs=2, requests=20))
