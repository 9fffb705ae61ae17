"""Figures of relevance on generated prompts of three tasks, each with a model that is good at it."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evaluate.figures import Evaluation, Figure, soft_auc
from benchmarks.evaluate.relevance import (
    BEST_PER_TASK,
    BEST_SINGLE,
    DIFFERENCE,
    OURS,
    evaluate,
    expected_calibration_error,
)
from benchmarks.evaluate.relevance_baseline import BASELINE
from predictors.learned.artifact import Artifact
from predictors.training.dataset import DatasetError
from predictors.training.relevance import train
from tests.unit.predictors_training.test_training_relevance import generated

TRAIN, TEST = generated(150, seed=1), generated(90, seed=2)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return train(TRAIN)


@pytest.fixture(scope="module")
def found(artifact: Artifact) -> Evaluation:
    return evaluate(artifact, TEST, TRAIN)


def figure(found: Evaluation, name: str, of: str, part: str) -> Figure:
    (one,) = [each for each in found.figures if (each.name, each.of, each.part) == (name, of, part)]
    return one


def test_both_predictors_are_measured_on_the_same_answers(found: Evaluation) -> None:
    for who in (OURS, BASELINE):
        auc = figure(found, "AUC", who, "all")
        assert auc.rows == 270
        assert auc.high is not None
        assert 0.6 < auc.low < auc.value < auc.high < 1.0
    difference = figure(found, "AUC", DIFFERENCE, "all").value
    ours, baseline = (figure(found, "AUC", who, "all").value for who in (OURS, BASELINE))
    assert difference == pytest.approx(ours - baseline)
    assert figure(found, "ECE", OURS, "made").value < 0.2


def test_a_picker_from_text_does_as_well_as_one_that_is_told_the_task(found: Evaluation) -> None:
    part = "made/correct"
    told = figure(found, "share of the gap", BEST_PER_TASK, part).value
    assert told > figure(found, "share of the gap", BEST_SINGLE, part).value + 0.2
    assert figure(found, "share of the gap", f"{OURS} - {BEST_PER_TASK}", part).value > -0.1
    random, oracle = (figure(found, "mean quality", who, part).value for who in ("random model", "oracle"))
    picked = figure(found, "mean quality", OURS, part).value
    assert figure(found, "share of the gap", OURS, part).value == pytest.approx(
        (picked - random) / (oracle - random)
    )


def test_reliability_and_tasks_are_drawn(found: Evaluation) -> None:
    curves = {curve.title: curve for curve in found.curves}
    assert len(curves["Reliability"].x) == 10
    assert len(curves["Quality by task"].x) == 3


def test_near_copies_of_training_prompts_are_refused(artifact: Artifact) -> None:
    with pytest.raises(DatasetError, match="split by group"):
        evaluate(artifact, TRAIN, TRAIN)


def test_without_training_data_there_are_no_baselines(artifact: Artifact) -> None:
    found = evaluate(artifact, TEST, None)
    assert {each.of for each in found.figures} == {OURS, "random model", "oracle"}


def test_models_that_the_artifact_does_not_know_are_left_out_and_told(artifact: Artifact) -> None:
    data = generated(60, seed=3)
    coder = [replace(each, model="stranger") for each in data.answers if each.model == "coder"]
    others = [each for each in data.answers if each.model != "coder"]
    found = evaluate(artifact, replace(data, answers=(*others, *coder)), None)
    assert figure(found, "AUC", OURS, "all").rows == 120
    assert any("unknown" in note for note in found.notes)
    with pytest.raises(DatasetError, match="none of the models"):
        evaluate(artifact, replace(data, answers=tuple(coder)), None)


def test_soft_auc_counts_ties_half_and_graded_answers_by_their_share() -> None:
    assert soft_auc(np.array([0.0, 1.0, 1.0]), np.array([0.1, 0.1, 0.9])) == 0.75
    assert soft_auc(np.array([0.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.3])) == 1.0
    assert soft_auc(np.array([0.5, 0.5]), np.array([0.1, 0.9])) == 0.5
    assert np.isnan(soft_auc(np.ones(3), np.arange(3.0)))


def test_calibration_error_is_the_distance_of_predicted_from_actual_means() -> None:
    actual = np.tile([0.0, 1.0], 100)
    assert expected_calibration_error(actual, np.full(200, 0.5)) == pytest.approx(0.0)
    assert expected_calibration_error(actual, np.full(200, 0.8)) == pytest.approx(0.3)
