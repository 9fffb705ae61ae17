"""A trained model's lengths, joined with what the fleet's answers were like."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from predictors.kernels import LearnedLengths, LengthTable, served_tables
from predictors.kernels.length_bins import BINS, EDGES, bin_of
from predictors.online.length import LengthDistribution
from predictors.online.model_lengths import Lengths

MIDDLES = np.array([(a + b) / 2 for a, b in pairwise(EDGES)])


def about(tokens: float, sd: float = 0.3) -> np.ndarray:
    shares = np.exp(-0.5 * (np.log(MIDDLES / tokens) / sd) ** 2) + 1e-6
    return np.asarray(shares / shares.sum())


def joined(learned: LearnedLengths, predicted: np.ndarray, online: LengthTable) -> LengthTable:
    (table,) = served_tables([learned], predicted[None], [online])
    return table


def test_before_anything_is_seen_the_trained_model_mostly_serves() -> None:
    learned, online = LearnedLengths(), LengthDistribution()
    table = joined(learned, about(50), online)
    assert 0.85 < learned.weight < 0.95
    assert table.p50 == pytest.approx(50, rel=0.2)
    assert sum(table.shares) == pytest.approx(1.0)
    assert table.quantile(0.99) > 300  # the wide prior still counts


def test_a_fleet_whose_answers_are_longer_corrects_the_marginal_and_keeps_the_order() -> None:
    rng = Random(1)
    learned, online = LearnedLengths(), LengthDistribution()
    for _ in range(400):
        expected = rng.choice((50, 200))
        actual = round(rng.lognormvariate(np.log(3 * expected), 0.3))
        learned.observe(about(expected), online, actual, censored=False)
        online.observe(actual)
    short, long = joined(learned, about(50), online), joined(learned, about(200), online)
    assert long.p50 > 1.5 * short.p50
    assert 350 < long.p50 < 800


def test_where_prompts_tell_nothing_the_histogram_takes_over() -> None:
    rng = Random(1)
    learned, online = LearnedLengths(), LengthDistribution()
    for _ in range(300):
        actual = round(rng.lognormvariate(np.log(100), 0.2))
        learned.observe(about(rng.choice((5, 3000)), 0.1), online, actual, censored=False)
        online.observe(actual)
    assert learned.weight < 0.05
    assert joined(learned, about(3000, 0.1), online).p50 == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("trained", [30, 150, 2000])
def test_on_prompts_of_a_kind_that_it_does_not_know_it_serves_like_the_histogram(trained: int) -> None:
    """The trained model is sure of lengths that have nothing to do with the answers. After 50 answers the median is not 10 %
    worse than that of the model's own histogram."""
    rng = Random(4)
    learned, online = LearnedLengths(), LengthDistribution()
    errors = [0.0, 0.0]
    for number in range(250):
        predicted = about(trained * rng.lognormvariate(0, 0.5), 0.25)
        actual = round(rng.lognormvariate(np.log(400), 0.6))
        if number >= 50:
            for place, median in enumerate((joined(learned, predicted, online).p50, online.p50)):
                errors[place] += abs(median - actual)
        learned.observe(predicted, online, actual, censored=False)
        online.observe(actual)
    served, histogram = errors
    assert served < 1.1 * histogram


def test_cut_answers_pull_up_not_down() -> None:
    learned, online = LearnedLengths(), LengthDistribution()
    for _ in range(100):
        learned.observe(about(100), online, 60, censored=True)
        online.observe(60, censored=True)
    assert joined(learned, about(100), online).p50 > 80


def test_shares_stay_a_distribution_whatever_comes() -> None:
    rng = Random(2)
    learned, online = LearnedLengths(), LengthDistribution()
    for _ in range(5000):
        tokens = max(1, round(rng.lognormvariate(5, 2)))
        learned.observe(about(rng.uniform(1, 5000)), online, tokens, censored=rng.random() < 0.3)
    table = joined(learned, about(100), online)
    assert min(table.shares) >= 0.0
    assert sum(table.shares) == pytest.approx(1.0)
    assert np.isfinite(learned.evidence)


def test_bins_hold_their_tokens() -> None:
    for tokens in (0, 1, 8, 9, 100, 262_144, 10**9):
        at = bin_of(tokens)
        assert 0 <= at < BINS
    assert EDGES[bin_of(100)] <= 100 < EDGES[bin_of(100) + 1]


def test_what_a_trained_model_said_is_learned_with_the_answer() -> None:
    lengths = Lengths()
    entry = lengths.of("m", "f")
    entry.observe_output(100, None, 1, about(100))
    entry.observe_output(300, 300, 1, about(100))
    assert lengths.models == {"m": entry}
    assert entry.learned.evidence != 0.0
    assert entry.output.observed == 2
