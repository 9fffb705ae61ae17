from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.evaluate.length import HISTOGRAM, MAIN, OURS, WARM_UP, answers_of, evaluate
from benchmarks.evaluate.length_baselines import MEDIAN, YARDSTICK, absolute_errors, baselines
from predictors.learned.artifact import Artifact
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt, split_prompts
from predictors.training.length import train
from tests.unit.predictors_training.made_lengths import TINY, made_data


def without_task(data: Dataset) -> Dataset:
    return replace(data, prompts=tuple(replace(each, task=None) for each in data.prompts))


def figure(found: Evaluation, name: str, of: str, part: str = "all") -> Figure:
    return next(each for each in found.figures if (each.name, each.of, each.part) == (name, of, part))


@pytest.fixture(scope="module")
def parts() -> tuple[Dataset, Dataset]:
    return split_prompts(without_task(made_data(160)), 0.3)


@pytest.fixture(scope="module")
def artifact(parts: tuple[Dataset, Dataset]) -> Artifact:
    return train(parts[0], settings=replace(TINY, least_steps=200))


@pytest.fixture(scope="module")
def found(artifact: Artifact, parts: tuple[Dataset, Dataset]) -> Evaluation:
    return evaluate(artifact, parts[1], parts[0])


def test_what_words_tell_is_better_than_medians(found: Evaluation) -> None:
    gain = figure(found, "MAE", f"{OURS} - {MEDIAN}")
    assert gain.high is not None
    assert gain.low < gain.value < gain.high < 0
    assert figure(found, "Spearman within model and task", OURS).value > 0.5
    assert figure(found, "Spearman within model and task", MEDIAN).value == 0.0


def test_differences_are_of_the_figures(found: Evaluation) -> None:
    for other in (MEDIAN, YARDSTICK):
        for name in ("MAE", "pinball loss at 0.5", "pinball loss at 0.9", "Spearman within model and task"):
            ours, theirs = figure(found, name, OURS), figure(found, name, other)
            assert figure(found, name, f"{OURS} - {other}").value == pytest.approx(ours.value - theirs.value)
        relative = figure(found, "MAE, relative", f"{OURS} - {other}").value
        assert relative == pytest.approx(
            figure(found, "MAE", OURS).value / figure(found, "MAE", other).value - 1
        )


def test_parts_and_curves(found: Evaluation) -> None:
    assert {"all", MAIN} <= {each.part for each in found.figures}
    assert figure(found, "MAE", OURS, MAIN).value == figure(found, "MAE", OURS).value  # all are of them
    assert 0.5 < figure(found, "coverage of 80 % intervals", OURS).value <= 1.0
    assert {each.title for each in found.curves} == {"Calibration", "Error by length"}
    assert found.notes


def test_cutting_answers_does_not_change_coverage(
    artifact: Artifact, found: Evaluation, parts: tuple[Dataset, Dataset]
) -> None:
    """Caps that are drawn without a look at the answers; those of most cut answers lie within the predicted interval."""
    caps = np.random.default_rng(1).lognormal(np.log(400), 1.0, len(parts[1].answers)).round().clip(1)
    cut = tuple(
        replace(
            each, output_tokens=int(min(each.output_tokens or 0, cap)), capped=(each.output_tokens or 0) > cap
        )
        for each, cap in zip(parts[1].answers, caps, strict=True)
    )
    assert 0.2 < np.mean([each.capped for each in cut]) < 0.6
    again = evaluate(artifact, replace(parts[1], answers=cut), None)
    name = "coverage of 80 % intervals"
    assert figure(again, name, OURS).value == pytest.approx(figure(found, name, OURS).value, abs=0.05)


def test_without_training_data_there_are_no_baselines(
    artifact: Artifact, parts: tuple[Dataset, Dataset]
) -> None:
    alone = evaluate(artifact, parts[1], None)
    assert {each.of for each in alone.figures if "served" not in each.name} == {OURS}


def test_on_unknown_prompts_it_serves_like_the_running_histogram(artifact: Artifact) -> None:
    """Prompts in other words with other lengths: the trained distributions are wrong, what is served is not."""
    strange = made_data(150, seed=9)
    prompts = tuple(
        replace(each, features=prompt_features(f"Zq{n} vx wk")) for n, each in enumerate(strange.prompts)
    )
    long = tuple(replace(each, output_tokens=5 * (each.output_tokens or 0)) for each in strange.answers)
    found = evaluate(artifact, replace(strange, prompts=prompts, answers=long), None)
    name = "MAE served, after 50 answers"
    served, histogram = figure(found, name, OURS), figure(found, name, HISTOGRAM)
    assert served.rows == 3 * (150 - WARM_UP)
    assert served.value < 1.1 * histogram.value
    assert served.value < 0.95 * figure(found, "MAE", OURS).value


def test_shuffled_labels_fall_to_the_baseline() -> None:
    kept, out = split_prompts(without_task(made_data(240, shuffled=True)), 0.3)
    found = evaluate(train(kept, settings=TINY), out, kept)
    assert figure(found, "MAE, relative", f"{OURS} - {MEDIAN}").high > -0.05
    assert abs(figure(found, "Spearman within model and task", OURS).value) < 0.3


def test_near_copies_on_both_sides_are_refused(artifact: Artifact, parts: tuple[Dataset, Dataset]) -> None:
    with pytest.raises(DatasetError, match="split by group"):
        evaluate(artifact, parts[1], made_data(160))


def test_a_test_part_without_lengths_is_refused(artifact: Artifact) -> None:
    with pytest.raises(DatasetError, match="no answer"):
        evaluate(artifact, Dataset(), None)


def test_a_cut_answer_is_missed_from_below_only() -> None:
    given = tuple(Answer("p", "m", None, 100, capped) for capped in (True, True, False))
    answers = answers_of(Dataset((Prompt("p", "g", "made", prompt_features("")),), given))
    assert absolute_errors(answers, np.array([70.0, 130.0, 130.0])).tolist() == [30.0, 0.0, 30.0]


def test_medians_fall_back_from_task_to_model_to_all() -> None:
    prompts = made_data(3).prompts
    tasks = tuple(replace(each, task=task) for each, task in zip(prompts, ("a", "b", "c"), strict=True))
    train_part, test_part = (
        answers_of(
            Dataset(tasks, tuple(Answer(tasks[at].id, model, None, tokens) for at, model, tokens in part))
        )
        for part in (((0, "m", 10), (0, "m", 20), (1, "n", 90)), ((0, "m", 1), (2, "n", 1), (2, "new", 1)))
    )
    assert baselines(train_part, test_part, 1)[MEDIAN][:, 0].tolist() == [15.0, 90.0, 20.0]


def test_the_yardstick_is_a_ridge_of_each_model_and_learns_from_answers_that_are_there() -> None:
    kept, out = (answers_of(each) for each in split_prompts(without_task(made_data(160)), 0.3))
    found = baselines(kept, out, 1)
    predicted = found[YARDSTICK]
    for model in np.unique(out.model):
        rows = out.model == model
        errors = [np.abs(np.log(each[rows, 0] / out.tokens[rows])) for each in (predicted, found[MEDIAN])]
        assert errors[0].mean() < 0.75 * errors[1].mean()
        assert 0.7 <= (out.tokens[rows] <= predicted[rows, 1]).mean() <= 1.0
    # Half of one model's answers are missing: the others' predictions stay as they are.
    poor = kept.part((kept.model != "qwen2.5-7b") | (kept.prompt % 2 == 0))
    again = baselines(poor, out, 1)[YARDSTICK]
    others = out.model != "qwen2.5-7b"
    assert again[others, 0] == pytest.approx(predicted[others, 0], rel=1e-3)
    assert not np.allclose(again[~others, 0], predicted[~others, 0], rtol=1e-3)


def test_the_yardstick_gives_an_unknown_model_the_mean_of_all() -> None:
    kept, out = (answers_of(each) for each in split_prompts(made_data(60), 0.3))
    unknown = replace(out, model=np.array(["new"] * len(out.model)))
    mean = float(np.exp(np.log(kept.tokens).mean()))
    assert baselines(kept, unknown, 1)[YARDSTICK][:, 0] == pytest.approx(np.full(len(out.model), mean))


def test_the_yardstick_without_a_word_in_training() -> None:
    kept, out = (answers_of(each) for each in split_prompts(made_data(60), 0.3))
    silent = replace(kept, prompts=tuple(replace(each, text=" ") for each in kept.prompts))
    predicted = baselines(silent, out, 1)[YARDSTICK]
    for model in np.unique(out.model):
        level = np.exp(np.log(kept.tokens[kept.model == model]).mean())
        assert predicted[out.model == model, 0] == pytest.approx(np.full((out.model == model).sum(), level))
