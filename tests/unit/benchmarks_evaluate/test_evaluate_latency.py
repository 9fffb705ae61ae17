"""Evaluation of the latency model."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evaluate import latency_baselines
from benchmarks.evaluate.latency import COMBINED, LSTM, _covered, evaluate
from benchmarks.evaluate.latency_baselines import LINEAR, TREES, fit_linear, fit_trees
from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.latency import train
from predictors.training.latency_fit import Settings
from predictors.training.replay import episodes
from tests.unit.predictors_training.latency_runs import served

MEDIAN = TAUS.index(0.5)


def parts() -> tuple[Dataset, Dataset]:
    data = served(levels=5, given_up=True)
    return data.keep(run=lambda run: run.level not in ("2", "4")), data.keep(
        run=lambda run: run.level in ("2", "4")
    )


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data need no more trees."""
    monkeypatch.setattr(latency_baselines, "ROUNDS", 30)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    settings = Settings(epochs=1, chunk=32, lanes=4, head_epochs=3, batch=32)
    return train(parts()[0], settings=settings)


def test_figures_and_curves_of_every_source_and_level(artifact: Artifact):
    known, test = parts()
    found = evaluate(artifact, test, known)
    figures = {(each.part, each.name, each.of): each for each in found.figures}
    assert {part for part, _, _ in figures} == {"made", "made, level 2", "made, level 4"}
    for of in ("physical estimate", LSTM, COMBINED, TREES, LINEAR):
        for name in ("TTFT median relative error", "TTFT pinball loss", "TPOT pinball loss"):
            figure = figures["made", name, of]
            assert figure.high is not None
            assert 0.0 <= figure.low <= figure.value <= figure.high
            assert figure.rows == 108
    # Twelve requests were given up before a first token came.
    assert figures["made", "TTFT coverage at 0.9", COMBINED].rows >= 108
    assert any("12 requests were given up" in note for note in found.notes)
    titles = {curve.title for curve in found.curves}
    assert titles == {
        f"{time} {what}, made" for time in ("TTFT", "TPOT") for what in ("calibration", "error by load")
    }
    for curve in found.curves:
        assert len(curve.x) == len(curve.y) > 0


def test_without_training_data_there_are_no_baselines(artifact: Artifact):
    found = evaluate(artifact, parts()[1], None)
    assert {figure.of for figure in found.figures} == {"physical estimate", LSTM, COMBINED}


def test_a_run_on_both_sides_is_refused(artifact: Artifact):
    known, _ = parts()
    with pytest.raises(DatasetError, match="3 runs are in the training part and in the test part"):
        evaluate(artifact, known, known)


def test_too_little_to_judge_by_is_refused(artifact: Artifact):
    with pytest.raises(DatasetError, match="fewer than 30 first tokens"):
        evaluate(artifact, served(levels=1, requests=20), None)


def test_coverage_counts_those_given_up_that_are_surely_late():
    nan, inf = np.nan, np.inf
    run = replace(
        next(episodes(parts()[1])),
        actual=np.array([[-1.0, nan], [1.0, 1.0], [nan, nan], [nan, nan]]),
        longer_than=np.array([-inf, -inf, 0.5, -0.5]),
        predicted={LSTM: np.zeros((4, 2, len(TAUS)))},  # every quantile is 0
    )
    assert _covered([run], 0, LSTM, 0.9) == pytest.approx([1.0, 0.0, 0.0, nan], nan_ok=True)
    assert _covered([run], 1, LSTM, 0.9) == pytest.approx([nan, 0.0, nan, nan], nan_ok=True)


def test_baselines_are_better_than_the_estimate_that_they_correct():
    known, test = (list(episodes(part)) for part in parts())
    actual = np.concatenate([each.actual[:, 1] for each in test])
    corrected = np.concatenate([each.corrected[:, 1] for each in test])
    for fit in (fit_trees, fit_linear):
        predict = fit(known, 1)
        predicted = np.concatenate([predict(each) for each in test])
        assert predicted.shape == (120, 2, len(TAUS))
        assert (np.diff(predicted, axis=2) >= 0.0).all()
        assert np.nanmean(abs(predicted[:, 1, MEDIAN] - actual)) < np.nanmean(abs(corrected - actual))
