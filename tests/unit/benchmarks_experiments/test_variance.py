"""Shares of variances with answers that are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.variance import (
    crossed,
    explained_by_groups,
    explained_by_prediction,
    places,
    with_interval,
)

VALUES = np.array([1.0, 3.0, 5.0, 7.0])
PAIRS = np.array([0, 0, 1, 1])


def test_groups_are_equal_in_all_columns() -> None:
    assert places(["b", "a", "b", "a"]).tolist() == [1, 0, 1, 0]
    found = places([1, 1, 2, 2], ["x", "y", "x", "x"])
    assert found[2] == found[3]
    assert len(set(found.tolist())) == 3


def test_the_share_that_groups_explain() -> None:
    # Inside the groups 2 + 2 over 2 degrees of freedom, of all 20 over 3.
    assert explained_by_groups(VALUES, PAIRS) == pytest.approx(1 - (4 / 2) / (20 / 3))
    assert explained_by_groups(np.array([1.0, 1.0, 5.0, 5.0]), PAIRS) == 1.0


def test_groups_without_meaning_explain_nothing() -> None:
    rng = np.random.default_rng(1)
    shares = [explained_by_groups(rng.normal(size=60), np.arange(60) // 2) for _ in range(200)]
    assert np.mean(shares) == pytest.approx(0, abs=0.03)
    assert np.isnan(explained_by_groups(VALUES, np.arange(4)))  # nothing is repeated
    assert np.isnan(explained_by_groups(np.ones(4), PAIRS))  # nothing to explain


def test_the_share_inside_larger_groups() -> None:
    values = np.array([1.0, 1.0, 2.0, 2.0, 101.0, 101.0, 102.0, 102.0])
    larger, lengths = np.repeat([0, 1], 4), np.tile([0, 0, 1, 1], 2)
    assert explained_by_groups(values, places(larger, lengths), larger) == 1.0
    assert explained_by_groups(values, lengths) < 0.01  # of all, the larger group is nearly everything


def test_the_share_that_a_prediction_explains() -> None:
    assert explained_by_prediction(VALUES, VALUES) == 1.0
    assert explained_by_prediction(VALUES, np.full(4, 4.0)) == 0.0
    assert explained_by_prediction(VALUES, VALUES + 1) == pytest.approx(1 - 4 / 20)
    # Who only knows the means of the groups explains nothing inside them.
    assert explained_by_prediction(VALUES, np.array([2.0, 2.0, 6.0, 6.0]), PAIRS) == 0.0
    assert np.isnan(explained_by_prediction(np.ones(3), np.ones(3)))


def test_the_interval_holds_the_value_and_comes_from_the_seed() -> None:
    rng = np.random.default_rng(2)
    actual = rng.normal(size=400)
    predicted = actual + rng.normal(size=400, scale=0.5)
    blocks = np.arange(400) // 10
    found = with_interval(actual, predicted, blocks, None, 3)
    assert found.low < found.value < found.high
    assert found.rows == 400
    assert found == with_interval(actual, predicted, blocks, None, 3)


def test_a_full_table_is_divided_into_rows_columns_and_the_pair() -> None:
    rng = np.random.default_rng(3)
    rows, columns = rng.normal(size=(200, 1), scale=2.0), rng.normal(size=(1, 200))
    table = rows + columns + rng.normal(size=(200, 200), scale=np.sqrt(3.0))
    shares = crossed(table, noise=0.0)
    assert shares["rows"] == pytest.approx(4 / 8, abs=0.08)
    assert shares["columns"] == pytest.approx(1 / 8, abs=0.03)
    assert shares["pair"] == pytest.approx(3 / 8, abs=0.05)
    assert sum(shares.values()) == pytest.approx(1)


def test_noise_is_a_part_of_the_rest() -> None:
    table = np.random.default_rng(4).normal(size=(50, 50))
    shares = crossed(table, noise=0.25)
    assert shares["noise"] == pytest.approx(0.25, abs=0.03)
    assert shares["pair"] == pytest.approx(0.75, abs=0.05)
    assert crossed(table, noise=9.0)["pair"] == 0.0  # there cannot be more noise than there is left
