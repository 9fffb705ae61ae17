"""Each estimator on numbers that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from predictors.learned.text_only import (
    LOG_TOKENS_STEP,
    MISSING,
    QUALITY_STEP,
    clusters,
    coded,
    factorised,
    linear,
    neighbours,
    two_heads,
)

NAN = float("nan")


def index(
    quality: list[list[float]], tokens: list[list[float]], vectors: list[list[float]]
) -> dict[str, np.ndarray]:
    """The arrays of an index of prompts, and the effects of three models; of the last one no length is known."""
    return {
        "index": np.array(vectors),
        "index_quality": coded(np.array(quality), QUALITY_STEP),
        "index_log_tokens": coded(np.log(np.array(tokens)), LOG_TOKENS_STEP),
        "index_levels": np.zeros(len(vectors)),
        "index_log_levels": np.zeros(len(vectors)),
        "effect_quality": np.array([0.0, 2.0, 0.0]),
        "effect_log_tokens": np.array([np.log(100.0), np.log(10.0), NAN]),
        "spread": np.zeros(3),
    }


def test_codes_keep_values_to_their_step_and_tell_what_is_missing() -> None:
    values = np.array([0.0, 1.0, 0.5, NAN])
    codes = coded(values, QUALITY_STEP)
    assert codes[3] == MISSING
    assert codes[:3] * QUALITY_STEP == pytest.approx(values[:3])
    assert coded(np.array([99.0]), LOG_TOKENS_STEP)[0] == MISSING - 1


def test_neighbours_are_the_nearest_and_a_model_that_none_knows_has_its_mean() -> None:
    seen = index(
        [[1.0, NAN, NAN], [1.0, NAN, NAN], [0.0, 0.0, 0.0]],
        [[50.0, NAN, NAN], [70.0, NAN, NAN], [900.0, 900.0, 900.0]],
        [[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]],
    )
    quality, tokens = neighbours(seen, 2, 0.0, 0.0, np.array([1.0, 0.0]))
    assert quality[:2] == pytest.approx([1.0, 1.0 / (1.0 + np.exp(-2.0))], abs=1e-6)
    assert tokens[:2] == pytest.approx([60.0, 10.0], rel=0.03)
    assert np.isnan(tokens[2])  # no length of it is known anywhere: not zero
    quality, tokens = neighbours(seen, 2, 0.0, 2.0, np.array([1.0, 0.0]))
    assert quality[0] == pytest.approx(0.75)
    assert tokens[0] == pytest.approx(80.0, rel=0.03)


def test_a_prompt_among_hard_ones_lowers_the_mean_of_models_not_seen_there() -> None:
    seen = index([[0.0, NAN, NAN]], [[50.0, NAN, NAN]], [[1.0, 0.0]])
    hard = {**seen, "index_levels": np.array([-3.0])}
    easy, _ = neighbours(seen, 5, 0.0, 1.0, np.array([1.0, 0.0]))
    quality, _ = neighbours(hard, 5, 0.0, 1.0, np.array([1.0, 0.0]))
    assert quality[1] == pytest.approx(1.0 / (1.0 + np.exp(1.0)))
    assert quality[1] < easy[1]


def test_sharpness_makes_the_nearest_neighbour_count_more() -> None:
    seen = index([[1.0, NAN, NAN], [0.0, NAN, NAN]], [[9.0, NAN, NAN]] * 2, [[1.0, 0.0], [0.0, 1.0]])
    vector = np.array([0.9, 0.4])
    blunt, _ = neighbours(seen, 2, 0.0, 0.0, vector)
    sharp, _ = neighbours(seen, 2, 8.0, 0.0, vector)
    assert blunt[0] == pytest.approx(0.5)
    assert sharp[0] == pytest.approx(1.0 / (1.0 + np.exp(-8.0 * 0.5)))


def test_clusters_speak_by_nearness() -> None:
    of = {
        "centres": np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]),
        "cluster_quality": np.array([[0.9], [0.5], [0.1]]),
        "cluster_tokens": np.array([[10.0], [20.0], [1000.0]]),
    }
    quality, tokens = clusters(of, 2, 0.0, np.array([0.8, 0.6]))
    assert (quality[0], tokens[0]) == (pytest.approx(0.7), pytest.approx(15.0))


LENGTHS = {
    "ridge": np.array([[1.0]]),
    "ridge_bias": np.array([2.0]),
    "spread": np.zeros(1),
    "length_low": np.array([1.0]),
    "length_high": np.array([4.0]),
}


def test_linear_lengths_stay_within_those_that_were_seen() -> None:
    of = {"logistic": np.array([[1.0]]), "logistic_bias": np.array([0.0]), **LENGTHS}
    found = [linear(of, np.array([x]))[1][0] for x in (-9.0, 1.0, 9.0)]
    assert found == pytest.approx(np.exp([1.0, 3.0, 4.0]))
    assert linear(of, np.array([50.0]))[0][0] == pytest.approx(0.99)


def test_two_heads_expect_the_mean_of_the_buckets() -> None:
    of = {
        "hidden": np.array([[1.0]]),
        "hidden_bias": np.zeros(1),
        "two_heads": np.zeros((1, 6)),
        "two_heads_bias": np.array([0.0, 2.0, 0.0, 0.0, np.log(3.0), 0.0]),
        "bucket_tokens": np.array([[10.0, 30.0], [10.0, 50.0]]),
    }
    quality, tokens = two_heads(of, np.array([1.0]))
    assert quality == pytest.approx([0.5, 1.0 / (1.0 + np.exp(-2.0))])
    assert tokens == pytest.approx([20.0, 20.0])


def test_the_win_between_two_models_is_the_sigmoid_of_their_difference() -> None:
    of = {
        "mf_projection": np.array([[1.0, 0.0], [0.0, 1.0]]),
        "mf_models": np.array([[2.0, 0.0], [0.0, 1.0]]),
        "mf_bias": np.zeros(2),
        **LENGTHS,
        "ridge": np.zeros((2, 1)),
    }
    quality, _ = factorised(of, np.array([0.5, 0.5]))
    logits = np.log(quality / (1.0 - quality))
    assert logits == pytest.approx([1.0, 0.5])
