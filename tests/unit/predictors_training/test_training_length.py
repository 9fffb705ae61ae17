from dataclasses import replace

import numpy as np
import pytest
import torch

from predictors.learned.artifact import Artifact, to_bytes
from predictors.learned.length_model import LENGTH_FEATURES, LengthModel, quantiles
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError
from predictors.training.length import LEAST_PROMPTS, train
from predictors.training.length_factors import fit_factors
from predictors.training.length_net import Mixture, negative_log_likelihood
from router.core.types import PromptFeatures
from tests.unit.predictors_training.made_lengths import MODELS, TINY, made_data

FLEET = [(name, family) for name, (family, _) in MODELS.items()]
#: For tests that do not look at what was learned.
SHORT = replace(TINY, least_steps=20)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return train(made_data(), settings=TINY)


def medians(model: LengthModel, text: str) -> np.ndarray:
    return quantiles(model.shares(prompt_features(text), FLEET), 0.5)


def test_words_of_the_prompt_tell_the_length(artifact: Artifact) -> None:
    model = LengthModel.load(artifact)
    essay = medians(model, "please write an essay about the river house")
    total = medians(model, "please write a sum about the river house")
    assert (essay > 3 * total).all()


def test_models_differ_as_in_the_data(artifact: Artifact) -> None:
    small, large, qwen = medians(LengthModel.load(artifact), "write a essay about the green house")
    assert large > small > qwen


def test_the_same_seed_gives_the_same_bytes() -> None:
    data = made_data(60)
    one, again = (to_bytes(train(data, settings=SHORT)) for _ in range(2))
    assert one == again
    assert to_bytes(train(data, settings=SHORT, seed=2)) != one


def test_what_was_cut_counts_as_longer_than_its_cap() -> None:
    data = made_data(cap=200)
    informed = LengthModel.load(train(data, settings=TINY))
    answers = tuple(replace(each, capped=False) for each in data.answers)
    blind = LengthModel.load(train(replace(data, answers=answers), settings=TINY))
    text = "please write a essay about the river house"
    assert (medians(informed, text) > 1.2 * medians(blind, text)).all()


def test_a_model_seen_only_cut_and_a_set_of_one_model() -> None:
    data = made_data(60)
    answers = tuple(
        replace(each, output_tokens=16, capped=True) if each.model.startswith("qwen") else each
        for each in data.answers
    )
    model = LengthModel.load(train(replace(data, answers=answers), settings=TINY))
    assert medians(model, "please write a essay about the river house")[2] > 16

    one = tuple(replace(each, family=None) for each in data.answers if each.model == "llama3.1:8b")
    alone = LengthModel.load(train(replace(data, answers=one), settings=SHORT))
    shares = alone.shares(prompt_features("write a poem"), [*FLEET, ("never seen", None)])
    assert shares.shape[0] == 4
    assert shares.sum(axis=1) == pytest.approx(np.ones(4))


def test_progress_and_the_description(artifact: Artifact) -> None:
    lines: list[str] = []
    train(made_data(60), settings=SHORT, progress=lines.append)
    assert any("epoch 1 of" in line for line in lines)
    assert artifact.kind == "length"
    assert artifact.features == LENGTH_FEATURES
    assert artifact.about["settings"]["hidden"] == TINY.hidden
    assert artifact.about["inner"]["answers"] == len(made_data().answers)


def with_lengths(data: Dataset, tokens: int | None) -> Dataset:
    return replace(data, answers=tuple(replace(each, output_tokens=tokens) for each in data.answers))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Dataset(), "no answer in the data has a length"),
        (with_lengths(made_data(60), None), "no answer in the data has a length"),
        (with_lengths(made_data(60), 50), "all 180 answers have 50 tokens"),
        (with_lengths(made_data(60), 0), "has 0 tokens"),
        (
            made_data(10),
            f"10 prompts with lengths of answers: a length predictor needs at least {LEAST_PROMPTS}",
        ),
    ],
)
def test_data_that_cannot_be_learned_from(data: Dataset, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        train(data, settings=TINY)


def test_only_cut_answers_tell_nothing() -> None:
    data = made_data(60)
    cut: tuple[Answer, ...] = tuple(replace(each, capped=True) for each in data.answers)
    with pytest.raises(DatasetError, match="cut at its cap"):
        train(replace(data, answers=cut), settings=TINY)


def test_likelihood_of_a_bin_and_beyond_a_cap() -> None:
    mixture = Mixture(torch.zeros(2, 1), torch.full((2, 1), 5.0), torch.zeros(2, 1))
    low, high = torch.tensor([4.0, 6.0]), torch.tensor([5.0, 9.0])
    found = negative_log_likelihood(mixture, low, high, torch.tensor([False, True]))

    def below(x: float) -> float:
        return float(1 / (1 + np.exp(-(x - 5.0))))

    assert found.tolist() == pytest.approx(
        [-np.log(below(5.0) - below(4.0)), -np.log(1 - below(6.0))], rel=1e-4
    )


def test_factors_of_a_prompt_come_from_fits_without_it() -> None:
    """With lengths that nothing explains, factors fitted on the prompt itself would correlate with its length."""
    rng = np.random.default_rng(3)
    data = made_data(150)
    features = [each.features for each in data.prompts]
    noise = rng.normal(size=150)
    rows = np.arange(150)
    groups = [each.group for each in data.prompts]
    counts = np.log1p([each.counts for each in features])
    found, _, of_prompts = fit_factors(features, counts, groups, (rows, np.zeros(150, int), noise), 1, 2, 16)
    assert np.corrcoef(of_prompts[:, 0], noise)[0, 1] < 0.3
    assert (of_prompts[:, 1] == 0).all()  # one model has one factor
    assert found["gram_table"].shape == (len(found["grams"]) + 1, 3)
    assert (found["gram_table"][0] == 0).all()


def test_factors_show_what_only_the_counts_say() -> None:
    rng = np.random.default_rng(4)
    counts = rng.uniform(0.0, 7.0, (300, 3))
    features = [PromptFeatures((), (), ())] * 300
    lengths = np.arange(300), np.zeros(300, int), counts[:, 1] + rng.normal(0, 0.1, 300)
    found, _, of_prompts = fit_factors(features, counts, [str(row) for row in range(300)], lengths, 1, 1, 64)
    served = np.tanh(counts @ found["random_weight"] + found["random_bias"]) @ found["random_table"]
    for each in (of_prompts, served):
        assert np.corrcoef(each[:, 0], lengths[2])[0, 1] > 0.9
