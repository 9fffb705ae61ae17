from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictors.kernels.length_bins import BINS, PRIOR_SHARES
from predictors.kernels.reference.length_network import (
    COMPONENTS,
    FREQUENT,
    PATCH,
    Vocabulary,
    grams_of,
    shares_of,
)
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.length_model import LENGTH_FEATURES, LengthModel, quantiles
from predictors.learned.text import COUNTS, prompt_features

TEXT = "Write a short poem about the sea, please."
FLEET: list[tuple[str, str | None]] = [
    ("llama3.1:8b", "llama"),
    ("llama3.3:70b", "llama"),
    ("unheard-of", None),
]


def made_artifact(familiar: float = 0.0) -> Artifact:
    """A small network of random weights that knows the words of TEXT."""
    rng = np.random.default_rng(1)
    rank, random, word, patch, hidden, dense, prompt, model, mix = 2, 9, 3, 4, 5, 6, 7, 4, 8
    counts = len(COUNTS) + FREQUENT
    inputs = counts + rank
    grams = np.unique(grams_of(prompt_features(TEXT)))
    words = np.unique(np.array(prompt_features(TEXT).head))
    shapes = {
        "gram_table": (len(grams) + 1, rank + 1), "random_weight": (counts, random), "random_bias": (random,),
        "random_table": (random, rank), "word_table": (len(words) + 1, word), "input_mean": (inputs,),
        "input_scale": (inputs,), "patch_weight": (PATCH * word, patch), "patch_bias": (patch,),
        "lstm_input": (patch, 4 * hidden), "lstm_state": (hidden, 4 * hidden), "lstm_bias": (4 * hidden,),
        "dense_weight": (inputs, dense), "dense_bias": (dense,), "trunk_weight": (2 * hidden + dense, prompt),
        "trunk_bias": (prompt,), "skip_weight": (rank, prompt), "skip_bias": (prompt,), "level_weight": (model, 1),
        "level_bias": (1,), "tilt_weight": (model, prompt), "tilt_bias": (prompt,), "mix_prompt": (prompt, mix),
        "mix_model": (model, mix), "mix_bias": (mix,), "out_weight": (mix, 3 * COMPONENTS),
        "out_bias": (3 * COMPONENTS,), "model_table": (1, model), "family_table": (2, model),
    }  # fmt: skip
    arrays = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["gram_table"][0] = 0.0
    arrays["gram_table"][:, -1] = 1.0
    arrays["level_bias"] += 5.0
    arrays |= {
        "grams": grams.astype(np.int32), "words": words.astype(np.int32), "models": np.array(["llama-3.1-8b"]),
        "families": np.array(["llama"]), "model_spread": np.ones(1, np.float32),
        "family_spread": np.ones(2, np.float32), "familiar": np.array([familiar / 2, familiar], np.float32),
    }  # fmt: skip
    return Artifact("length", LENGTH_FEATURES, arrays, digest="0123456789ab")


@pytest.mark.parametrize(
    "text", [TEXT, "", "🎉" * 40, "x" * 2**20, "word " * 200_000, "\n\n\n", "\x00 \ud800"]
)
def test_every_prompt_has_a_distribution(text: str) -> None:
    shares = LengthModel.load(made_artifact()).shares(prompt_features(text), FLEET)
    assert shares.shape == (3, BINS)
    assert shares.dtype == np.float64
    assert shares.sum(axis=1) == pytest.approx(np.ones(3))
    assert (shares > 0).all()


def test_the_tail_is_heavy() -> None:
    shares = LengthModel.load(made_artifact()).shares(prompt_features(TEXT), FLEET)
    assert (shares[:, -8:] > 1e-10).all()
    narrow = shares_of(np.array([5.0]), np.array([[0.0] * 6 + [-4.0] * 3]), np.ones((1, 1)))
    assert narrow[0, quantile_bin(narrow, 0.5) + 16 :].sum() > 1e-5  # over sixteen times the median


def quantile_bin(shares: np.ndarray, probability: float) -> int:
    return int((np.cumsum(shares[0]) < probability).sum())


def test_a_model_not_known_is_its_family_and_a_family_not_known_any_model() -> None:
    model = LengthModel.load(made_artifact())
    features = prompt_features(TEXT)
    own, kin, other = model.shares(features, FLEET)
    same = model.shares(features, [("org/Meta-Llama-3.1-8B-Instruct", None), ("some-llama", "llama")])
    assert same[0] == pytest.approx(own)
    assert same[1] == pytest.approx(kin)
    assert model.shares(features, [("another", "no such family")])[0] == pytest.approx(other)
    assert not np.allclose(own, kin)
    assert not np.allclose(kin, other)


def test_a_fleet_gives_what_its_models_give_alone() -> None:
    model = LengthModel.load(made_artifact())
    together = model.shares(prompt_features(TEXT), FLEET)
    for row, each in zip(together, FLEET, strict=True):
        assert model.shares(prompt_features(TEXT), [each])[0] == pytest.approx(row, rel=1e-4)


def test_a_prompt_of_strange_words_is_drawn_to_the_prior() -> None:
    model = LengthModel.load(made_artifact(familiar=0.8))
    sure = LengthModel.load(made_artifact())
    prior = np.array(PRIOR_SHARES)
    strange = prompt_features("Zwölf Boxkämpfer jagen Viktor")
    assert model.shares(strange, FLEET) == pytest.approx(np.tile(prior, (3, 1)))
    assert not np.allclose(sure.shares(strange, FLEET), prior)
    assert model.shares(prompt_features(TEXT), FLEET) == pytest.approx(
        sure.shares(prompt_features(TEXT), FLEET)
    )


def test_spread_widens_about_the_middle() -> None:
    centre, out = np.array([5.0, 5.0]), np.tile([0.0] * 3 + [-0.1, 0.0, 0.1] + [-1.0] * 3, (2, 1))
    narrow, wide = shares_of(centre, out, np.array([[1.0], [1.5]]))[:, None]
    assert quantiles(wide, 0.9) - quantiles(wide, 0.1) > 1.4 * (
        quantiles(narrow, 0.9) - quantiles(narrow, 0.1)
    )
    assert quantiles(wide, 0.5) == pytest.approx(quantiles(narrow, 0.5), rel=0.03)


def test_known_words_and_pairs_count_once() -> None:
    once, twice = prompt_features("red fox"), prompt_features("red fox red fox")
    vocabulary = Vocabulary.of(np.unique(grams_of(once)), np.array(once.head))
    rows, share = vocabulary.known(twice)
    assert rows.tolist() == [1, 2, 3]
    assert share == pytest.approx(2 / 3)
    assert vocabulary.known(prompt_features("red fox, red fox"))[1] == 0.5  # two of four pairs
    assert vocabulary.known(prompt_features("fox"))[1] == 1.0
    assert vocabulary.known(prompt_features(""))[1] == 0.0
    assert vocabulary.sequences(twice).ravel().tolist() == [1, 2, 1, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["lstm_state", "grams", "familiar", "models"])
def test_a_missing_array_is_refused_by_name(name: str) -> None:
    whole = made_artifact()
    arrays = {key: array for key, array in whole.arrays.items() if key != name}
    with pytest.raises(ArtifactError, match=name):
        LengthModel.load(replace(whole, arrays=arrays))


@pytest.mark.parametrize("name", sorted(made_artifact().arrays))
def test_a_misshapen_array_is_refused(name: str) -> None:
    whole = made_artifact()
    with pytest.raises(ArtifactError):
        LengthModel.load(replace(whole, arrays={**whole.arrays, name: np.zeros((0, 1, 2), np.float32)}))


@pytest.mark.parametrize("name", ["lstm_state", "patch_weight", "gram_table", "trunk_weight", "family_table"])
def test_arrays_that_do_not_fit_together_are_refused(name: str) -> None:
    whole = made_artifact()
    with pytest.raises(ArtifactError, match=r"do(es)? not fit"):
        LengthModel.load(replace(whole, arrays={**whole.arrays, name: whole.arrays[name][:-1]}))
