"""Training of the text-only estimators on generated prompts, where it is known what decides quality and length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.evaluate.picks import BEST_PER_TASK, BEST_SINGLE
from benchmarks.evaluate.text_only import evaluate, recovered
from predictors.learned.artifact import Artifact, ArtifactError, save, to_bytes
from predictors.learned.models import load_models
from predictors.learned.text import prompt_features
from predictors.learned.text_only import TextModels
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt
from predictors.training.text_only import train
from predictors.training.text_only_labels import length_effects, quality_effects

WORDS = {
    "sums": ["apples", "sold", "price", "total", "each", "many", "dollars", "left", "twice", "bought"],
    "poems": ["poem", "rhyme", "moon", "verse", "love", "autumn", "stanza", "silver", "lyric", "haiku"],
}
CHANCES = {"adder": {"sums": 0.9, "poems": 0.2}, "poet": {"sums": 0.2, "poems": 0.8}}
TOKENS = {"sums": 50, "poems": 400}
LEARNED = ("knn", "clusters", "logistic", "eccos_t", "eccos_r", "factorisation")


def generated(prompts: int, seed: int) -> Dataset:
    """`novice` answered sums alone, without lengths; `lately` has another kind of quality."""
    rng = np.random.default_rng(seed)
    made, answers = [], []
    for number in range(prompts):
        task = ("sums", "poems")[number % 2]
        words = [*rng.choice(WORDS[task], size=8), *rng.choice(["the", "of", "a", "please", "me"], size=5)]
        name = f"{seed}-{number}"
        text = " ".join(rng.permutation(words).tolist())
        made.append(Prompt(name, name, "made", prompt_features(text), task, text))
        for model, chance in CHANCES.items():
            tokens = int(TOKENS[task] * np.exp(rng.normal(0.0, 0.2)))
            good = float(rng.random() < chance[task])
            answers.append(Answer(name, model, output_tokens=tokens, quality=good, quality_kind="correct"))
        if task == "sums":
            answers.append(Answer(name, "novice", quality=float(rng.random() < 0.5), quality_kind="correct"))
        answers.append(Answer(name, "lately", quality=0.5, quality_kind="win"))
    return Dataset(tuple(made), tuple(answers))


TRAIN, TEST = generated(300, seed=1), generated(120, seed=2)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return train(TRAIN)


@pytest.fixture(scope="module")
def models(artifact: Artifact) -> TextModels:
    return TextModels.load(artifact)


@pytest.mark.parametrize("name", LEARNED)
def test_each_estimator_learns_who_is_good_at_what_and_how_long_it_takes(
    models: TextModels, name: str
) -> None:
    estimate = models.estimators[name]
    right, short, long = [], [], []
    for prompt in TEST.prompts:
        (adder, poet), tokens = estimate(prompt.features, ("adder", "poet"))
        right.append((adder > poet) == (prompt.task == "sums"))
        (short if prompt.task == "sums" else long).extend(each for each in tokens if each is not None)
    assert np.mean(right) > 0.95
    assert 35 < np.mean(short) < 90
    assert 250 < np.mean(long) < 550


@pytest.mark.parametrize("name", ["mean", *LEARNED])
def test_unknown_models_differ_from_bad_ones(models: TextModels, name: str) -> None:
    quality, tokens = models.estimators[name](
        TEST.prompts[1].features, ("nobody", "org/Adder", "lately", "novice")
    )
    assert quality[0] is tokens[0] is quality[2] is None
    assert quality[1] is not None
    assert tokens[1] is not None
    assert 0.05 < quality[3] < 0.95
    assert tokens[3] is None  # no length of it was measured


def test_an_empty_prompt_and_no_models_are_answered(models: TextModels) -> None:
    for estimate in models.estimators.values():
        quality, tokens = estimate(prompt_features(""), ("adder",))
        assert 0.0 < quality[0] < 1.0
        assert 1.0 < tokens[0] < 2000.0
        assert estimate(prompt_features("the moon"), ()) == ([], [])


def test_the_same_data_give_the_same_bytes(artifact: Artifact) -> None:
    assert to_bytes(train(TRAIN)) == to_bytes(artifact)


def test_a_directory_with_the_artifact_serves_it(artifact: Artifact, tmp_path: Path) -> None:
    save(artifact, tmp_path)
    loaded = load_models(tmp_path)
    assert loaded.text.knows("adder")
    assert not loaded.text.knows("nobody")


def test_what_cannot_be_learned_from_is_refused() -> None:
    with pytest.raises(DatasetError, match="need 40 at least"):
        train(generated(20, seed=3))
    same = replace(TRAIN, answers=tuple(replace(each, quality=1.0) for each in TRAIN.answers))
    with pytest.raises(DatasetError, match="same quality"):
        train(same)


@pytest.mark.parametrize("name", ["logistic", "index_quality", "bucket_tokens", "gram_table", "head_lengths"])
def test_an_artifact_that_does_not_fit_is_refused(artifact: Artifact, name: str) -> None:
    cut = {**artifact.arrays, name: artifact.arrays[name][:-1]}
    with pytest.raises(ArtifactError, match=r"does not fit|do not fit"):
        TextModels.load(replace(artifact, arrays=cut))
    without = {key: value for key, value in artifact.arrays.items() if key != name}
    with pytest.raises(ArtifactError, match=f"without its {name}"):
        TextModels.load(replace(artifact, arrays=without))


def test_effects_are_separated_from_levels() -> None:
    """A model that answered only the hard half is not the worse for it."""
    rng = np.random.default_rng(1)
    levels = np.repeat([1.0, -1.0], 400)
    chance = 1.0 / (1.0 + np.exp(-(levels[:, None] + np.array([0.0, 0.0, 0.0, 0.0, 1.0]))))
    quality = (rng.random(chance.shape) < chance).astype(float)
    quality[:400, 4] = np.nan
    found = quality_effects(quality)
    assert np.nanmean(quality[:, 4]) < np.nanmean(quality[:, 0]) + 0.05
    assert found.effects[4] - found.effects[:4].mean() == pytest.approx(1.0, abs=0.45)  # levels lean on zero
    long = length_effects(np.where(np.isnan(quality), np.nan, 3.0 + levels[:, None]))
    assert long.effects == pytest.approx([3.0] * 5, abs=0.25)


def test_figures_of_picks_and_of_two_models(artifact: Artifact) -> None:
    found = evaluate(artifact, TEST, TRAIN)
    values = {(each.name, each.of): each.value for each in found.figures}
    for name in LEARNED:
        assert values["AUC within models", name] > 0.75
        assert values["Brier score", name] < values["Brier score", "mean"]
        assert values["log error", name] < values["log error", "mean"]
        assert values["mean quality", name] > values["mean quality", BEST_SINGLE]
        assert values["mean quality", name] == pytest.approx(values["mean quality", BEST_PER_TASK], abs=0.02)
    with pytest.raises(DatasetError, match="are in the training part and in the test part"):
        evaluate(artifact, TRAIN, TRAIN)


def test_recovered_gap_with_an_oracle_and_with_its_opposite() -> None:
    good, poor = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0, 0.0])
    assert recovered(good - poor, good, poor).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert recovered(poor - good, good, poor).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
