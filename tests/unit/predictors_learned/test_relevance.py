"""Serving of relevance: which estimate answers for which model, and what is said of prompts unlike any learned."""

from dataclasses import replace

import numpy as np
import pytest

from predictors.kernels.reference.prompt_encoder import count_features, grams
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.relevance import RELEVANCE_FEATURES, RelevanceModel
from predictors.learned.text import COUNTS, prompt_features

SUMS = "how many apples are left after Tom sold three"
POEMS = "write a poem about the silver moon tonight"


def artifact(**changed: np.ndarray) -> Artifact:
    """Two prototypes, sums and poems. On the scale of correct answers "adder" is 2 up in log-odds at sums,
    "poet-7b" at poems; "judge-3" and another "adder" stand on a scale whose values lie 1 lower."""
    ids = np.unique(np.concatenate([grams(prompt_features(SUMS)), grams(prompt_features(POEMS))]))
    in_sums = np.isin(ids, grams(prompt_features(SUMS)))
    in_poems = np.isin(ids, grams(prompt_features(POEMS)))
    inputs = 2 + len(COUNTS) + 1
    arrays = {
        "gram_ids": ids.astype(np.uint32),
        "gram_idf": np.ones(len(ids), dtype=np.float32),
        "gram_table": np.stack([in_sums, in_poems], axis=1).astype(np.int8),
        "gram_step": np.full(len(ids), 0.25, dtype=np.float16),
        "lexicon": np.zeros((len(ids), 1), dtype=np.int8),
        "lexicon_step": np.ones(len(ids), dtype=np.float32),
        "unknown_idf": np.array(3.0, dtype=np.float32),
        "hidden": np.zeros((inputs, 3), dtype=np.float16),
        "hidden_bias": np.zeros(3, dtype=np.float32),
        "out": np.zeros((4, 4), dtype=np.float16),
        "out_bias": np.zeros(4, dtype=np.float32),
        "task_weights": np.zeros((inputs, 1), dtype=np.float16),
        "task_bias": np.zeros(1, dtype=np.float32),
        "task_departures": np.zeros((1, 4), dtype=np.float16),
        "centres": np.eye(2, dtype=np.float16),
        "centre_counts": np.array([[1e4, 10.0], [1e4, 10.0]], dtype=np.float16),
        "centre_clusters": np.array([4, 7], dtype=np.uint16),
        "departures": np.array([[2, 0, 0, 0], [0, 2, 0, 0]], dtype=np.float16),
        "near": np.array([0.05, 0.2], dtype=np.float32),
        "head_names": np.array(["adder", "poet-7b", "adder", "judge-3"]),
        "head_scale": np.array([0, 0, 1, 1], dtype=np.uint16),
        "head_rows": np.array([100, 100, 20, 20], dtype=np.uint32),
        "head_prior": np.array([0.0, 0.5, -1.0, -1.5], dtype=np.float32),
        "scale_names": np.array(["tests/correct", "talk/win"]),
        "scale_shift": np.array([0.0, 1.0], dtype=np.float32),
    }
    return Artifact("relevance", RELEVANCE_FEATURES, arrays | changed, digest="0123456789ab")


def odds(quality: np.ndarray) -> list[float]:
    return [round(float(np.log(value / (1 - value))), 1) for value in quality]


def test_departs_from_the_mean_where_a_model_is_good() -> None:
    model = RelevanceModel.load(artifact())
    mean, deviation, cluster, _ = model.quality(prompt_features(SUMS), ["adder", "poet-7b"])
    assert (odds(mean), cluster) == ([2.0, 0.5], 4)
    assert (deviation < 0.02).all()
    mean, _, cluster, _ = model.quality(prompt_features(POEMS), ["adder", "poet-7b"])
    assert (odds(mean), cluster) == ([0.0, 2.5], 7)


def test_each_expert_departs_by_its_own_measure() -> None:
    """Two tasks as likely as 3 to 1, of which the first is 4 down; one hidden unit at 2; a lexicon at 1."""
    weights = {
        "task_weights": np.zeros((2 + len(COUNTS) + 1, 2), dtype=np.float16),
        "task_bias": np.log(np.array([3.0, 1.0], dtype=np.float32)),
        "task_departures": np.array([[-4, 0, 0, 0], [0, 0, 0, 0]], dtype=np.float16),
        "hidden_bias": np.array([2.0, 0.0, -1.0], dtype=np.float32),
        "out": np.array([[0, 1, 0, 0], [9, 9, 0, 0], [9, 9, 0, 0], [0, 0.5, 0, 0]], dtype=np.float16),
        "lexicon": np.ones((len(artifact().arrays["gram_ids"]), 1), dtype=np.int8),
    }
    mean, *_ = RelevanceModel.load(artifact(**weights)).quality(
        prompt_features("apples"), ["adder", "poet-7b"]
    )
    assert odds(mean) == [-1.0, 3.0]
    mean, *_ = RelevanceModel.load(artifact(**weights)).quality(prompt_features(SUMS), ["adder", "poet-7b"])
    # 17 grams in a prompt of length 1 together weigh the root of 17
    assert odds(mean) == [-1.0, round(0.5 + 2.0 + 0.5 * 17**0.5, 1)]


def test_a_word_said_often_weighs_more_but_not_as_often() -> None:
    encoder = RelevanceModel.load(artifact()).encoder
    once, twice = (encoder.vector(prompt_features(text)) for text in ("apples poem", "apples poem apples"))
    assert once[:2] == pytest.approx([0.5**0.5, 0.5**0.5])
    often = 1.0 + np.log(2.0)
    assert twice[:2] == pytest.approx(np.array([often, 1.0]) / np.hypot(often, 1.0))


def test_a_model_that_nobody_rated_is_unknown() -> None:
    model = RelevanceModel.load(artifact())
    assert (model.knows("some-host/Adder-Instruct"), model.knows("nobody")) == (True, False)
    with pytest.raises(ValueError, match="does not know all of adder, nobody"):
        model.quality(prompt_features(SUMS), ["adder", "nobody"])
    assert model.quality(prompt_features(SUMS), [])[0].shape == (0,)


def test_a_fleet_is_judged_on_the_scale_that_knows_most_of_it() -> None:
    model = RelevanceModel.load(artifact())
    far = prompt_features("")
    assert odds(model.quality(far, ["adder", "poet-7b"])[0]) == [0.0, 0.5]
    assert odds(model.quality(far, ["adder", "judge-3"])[0]) == [-1.0, -1.5]
    # judge-3 is moved from the scale of wins to that of correct answers
    found = odds(model.quality(far, ["judge-3", "poet-7b", "adder"])[0])
    assert found in ([-0.5, 0.5, 0.0], [-1.5, -0.5, -1.0])


def test_of_two_versions_the_one_of_the_very_name_answers() -> None:
    names = np.array(["adder-20240101", "adder-20250101", "adder", "judge-3"])
    model = RelevanceModel.load(artifact(head_names=names))
    far = prompt_features("")
    fleet = ["adder-20240101", "adder-20250101"]
    assert odds(model.quality(far, fleet)[0]) == [0.0, 0.5]


@pytest.mark.parametrize(
    ("dates", "odds_of_newest"), [(("20240101", "20250101"), 0.5), (("20250101", "20240101"), 0.0)]
)
def test_a_name_without_a_version_means_the_newest(dates: tuple[str, str], odds_of_newest: float) -> None:
    names = np.array([*(f"adder-{date}" for date in dates), "other", "judge-3"])
    model = RelevanceModel.load(artifact(head_names=names))
    assert odds(model.quality(prompt_features(""), ["some-host/Adder"])[0]) == [odds_of_newest]


@pytest.mark.parametrize(
    "text", ["", "🙂" * 500, "x" * 1_000_000, "ξένη γλώσσα χωρίς γνωστές λέξεις", "\x00\ud800"]
)
def test_far_from_the_training_data_only_means_are_predicted_with_low_trust(text: str) -> None:
    model = RelevanceModel.load(artifact())
    mean, deviation, cluster, _ = model.quality(prompt_features(text), ["adder", "poet-7b"])
    assert odds(mean) == [0.0, 0.5]
    assert (deviation > 0.3).all()
    assert cluster in (4, 7)


def test_grams_are_words_and_pairs() -> None:
    found = grams(prompt_features("one two three"))
    assert len(found) == 5
    assert (found[:3] < 2**16).all()
    assert (found[3:] >= 2**16).all()
    assert len(grams(prompt_features(""))) == 0
    assert len(count_features(prompt_features("one").counts)) == len(COUNTS)


@pytest.mark.parametrize("name", sorted(artifact().arrays))
def test_an_artifact_without_one_of_its_arrays_is_refused(name: str) -> None:
    whole = artifact()
    without = {key: value for key, value in whole.arrays.items() if key != name}
    with pytest.raises(ArtifactError, match=name):
        RelevanceModel.load(replace(whole, arrays=without))


@pytest.mark.parametrize(
    "changed",
    [
        {"departures": np.zeros((2, 3), dtype=np.float16)},
        {"gram_table": np.zeros((3, 2), dtype=np.int8)},
        {"hidden": np.zeros((2, 3), dtype=np.float16)},
        {"out": np.zeros((3, 4), dtype=np.float16)},
        {"head_scale": np.array([0, 0, 1, 2], dtype=np.uint16)},
        {"near": np.array([0.2, 0.2], dtype=np.float32)},
        {"head_names": np.arange(4)},
    ],
)
def test_an_artifact_whose_arrays_do_not_fit_is_refused(changed: dict[str, np.ndarray]) -> None:
    with pytest.raises(ArtifactError, match="fit"):
        RelevanceModel.load(artifact(**changed))
