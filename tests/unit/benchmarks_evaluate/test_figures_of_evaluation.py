"""Figures of an evaluation: the bootstrap's intervals hold what they should, and reports can be written."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks.evaluate.figures import Curve, Evaluation, Figure, block_bootstrap, pinball, share_up_to


def test_intervals_are_those_of_the_mean() -> None:
    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    found, low, high = block_bootstrap(range(400), lambda rows: float(values[rows].mean()))
    assert found == pytest.approx(values.mean())
    half = 1.96 * values.std() / math.sqrt(400)
    assert high - low == pytest.approx(2 * half, rel=0.1)
    assert low < found < high


def test_rows_of_a_block_are_drawn_together() -> None:
    """Copies of a row tell nothing new: the interval stays as wide as without them."""
    values = np.random.default_rng(3).normal(5.0, 2.0, 60)
    copied, blocks = np.repeat(values, 20), [f"prompt {index}" for index in np.repeat(np.arange(60), 20)]
    _, low, high = block_bootstrap(range(60), lambda rows: float(values[rows].mean()))
    _, low_of_blocks, high_of_blocks = block_bootstrap(blocks, lambda rows: float(copied[rows].mean()))
    _, low_of_rows, high_of_rows = block_bootstrap(range(1200), lambda rows: float(copied[rows].mean()))
    assert high_of_blocks - low_of_blocks == pytest.approx(high - low, rel=0.1)
    assert high_of_rows - low_of_rows < 0.35 * (high - low)


def test_blocks_need_not_stand_together() -> None:
    values = np.array([0.0, 10.0, 0.0, 10.0])
    sums = set()
    block_bootstrap(["a", "b", "a", "b"], lambda rows: sums.add(tuple(sorted(values[rows]))) or 0.0)
    assert sums == {(0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 10.0, 10.0), (10.0, 10.0, 10.0, 10.0)}


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).random(50)

    def interval(seed: int) -> tuple[float, float, float]:
        return block_bootstrap(range(50), lambda rows: float(values[rows].mean()), resamples=50, seed=seed)

    assert interval(4) == interval(4)
    assert interval(4) != interval(5)


def test_unknown_statistics() -> None:
    with pytest.raises(ValueError, match="no rows"):
        block_bootstrap([], lambda rows: 0.0)
    found, low, high = block_bootstrap(["a", "b"], lambda rows: math.nan, resamples=5)
    assert math.isnan(found)
    assert math.isnan(low)
    assert math.isnan(high)
    values = np.array([1.0, math.nan])
    _, low, high = block_bootstrap(["a", "b"], lambda rows: float(values[rows].mean()), resamples=50)
    assert low == high == 1.0


@pytest.mark.parametrize(
    ("name", "low", "high", "verdict"),
    [
        ("MAE", -3.0, -1.0, "better"),
        ("MAE, relative", 0.01, 0.2, "worse"),
        ("pinball loss at 0.9", -3.0, 0.1, "no difference shown"),
        ("pinball loss at 0.9", 0.0, 0.1, "no difference shown"),
        ("Spearman within model and task", 0.01, 0.03, "better"),
        ("AUC within models", -0.02, -0.01, "worse"),
        ("MAE", None, None, "no difference shown"),
        ("MAE", math.nan, math.nan, "no difference shown"),
        ("coverage of 80 % intervals", 0.1, 0.2, ""),
    ],
)
def test_a_verdict_is_by_the_interval(name: str, low: float | None, high: float | None, verdict: str) -> None:
    difference = Figure(name, "ours - theirs", "all", -100.0, low=low, high=high)
    assert difference.verdict == verdict
    assert Figure(name, "ours", "all", -100.0, low=low, high=high).verdict == ""
    (told,) = Evaluation("length", (difference,)).as_dict()["figures"]
    assert told.get("verdict", "") == verdict


def test_pinball_loss() -> None:
    actual, predicted = np.array([10.0, 10.0]), np.array([8.0, 11.0])
    assert pinball(actual, predicted, 0.9).mean() == pytest.approx((0.9 * 2 + 0.1 * 1) / 2)


def test_an_evaluation_can_be_written_as_json() -> None:
    evaluation = Evaluation(
        "length",
        (
            Figure("MAE", "ours", "all", 80.0, "tokens", low=math.nan, high=90.0, rows=10),
            Figure("MAE", "ours", "family llama", 80.0),
        ),
        (Curve("calibration", "ours", "nominal", "actual", (0.1, 0.9), (math.inf, 0.8)),),
        ("a note",),
        {"seed": np.int64(3), 4: np.float32(0.5)},
    )
    told = json.loads(json.dumps(evaluation.as_dict(), allow_nan=False))
    assert told["figures"][0] == {
        **{"name": "MAE", "of": "ours", "part": "all", "value": 80.0, "unit": "tokens"},
        **{"low": None, "high": 90.0, "rows": 10},
    }
    assert told["curves"][0]["y"] == [None, 0.8]
    assert told["about"] == {"seed": 3, "4": 0.5}
    assert [each.part for each in evaluation.headline()] == ["all"]
    within = Figure("MAE", "ours", "family llama, level 2", 80.0)
    assert Evaluation("length", (evaluation.figures[1], within)).headline() == evaluation.figures[1:]


@pytest.mark.parametrize("cut_share", [0.0, 0.5, 1.0])
def test_caps_do_not_change_what_share_of_values_is_below_a_bound(cut_share: float) -> None:
    rng = np.random.default_rng(1)
    values = rng.random(20_000)
    caps = np.where(rng.random(20_000) < cut_share, rng.random(20_000), 2.0)
    bounds = (0.1, 0.5, 0.9)
    found = share_up_to(bounds, np.minimum(values, caps), values > caps, np.ones(20_000))
    assert found == pytest.approx(bounds, abs=0.03)


def test_shares_above_every_cap_are_unknown() -> None:
    values, cut = np.array([0.4, 0.1, 0.4, 0.2]), np.array([True, False, True, False])
    assert share_up_to((0.1, 0.3, 0.4), values, cut, np.ones(4)).tolist()[:2] == [0.25, 0.5]
    assert np.isnan(share_up_to((0.4,), values, cut, np.ones(4)))
    assert share_up_to((0.4,), values, np.zeros(4, bool), np.ones(4)).tolist() == [1.0]
    weighted = share_up_to((0.1,), values, cut, np.array([1.0, 2.0, 0.0, 1.0]))
    assert weighted.tolist() == [0.5]
