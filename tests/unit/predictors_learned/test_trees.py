"""The forests as they serve: evaluation, features, the offset learned online, what the predictor makes of them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.models import Models
from predictors.learned.trees import TAU, TREE_FEATURES, TreeModel, tree_row
from predictors.online.prediction import OnlinePrediction
from predictors.online.predictor import OnlinePredictor
from predictors.online.tree_offsets import TreeGroup, TreeOffset
from router.core.interfaces import Option, SentAttempt
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Request

PROFILE = EngineProfile("fast", 1e-3, 9e-3, 1e-4, 1e-7, 1e-9, 100_000)
SLOW = replace(PROFILE, name="slow", overhead_s=1e-2, floor_s=9e-2, per_token_s=1e-3)
AWAITING = TREE_FEATURES.index("awaiting")


def artifact(**changed: np.ndarray) -> Artifact:
    """A stump for each time: TTFT twice its base once somebody waits, TPOT always 1.5 times."""
    arrays = {
        "feature": np.array([[AWAITING], [AWAITING]], np.uint8),
        "threshold": np.array([[0.5], [0.5]]),
        "value": np.array([[0.0, log(2.0)], [0.0, 0.0]], np.float32),
        "base": np.array([0.0, log(1.5)]),
        "ttft_trees": np.array(1),
    }
    return Artifact("trees", TREE_FEATURES, {**arrays, **changed})


def option(name: str, profile: EngineProfile = PROFILE, *, hardware: str | None = None) -> Option:
    candidate = Candidate(name, "m", "m")
    return Option(
        candidate, Instance(name, "vllm", {"m": candidate}, hardware=hardware, profiles={"m": profile})
    )


REQUEST = Request("r", 0.0, "predicted_latency", ("m",), prompt_tokens=1000)


def times_of(
    predictor: OnlinePredictor, options: list[Option], now: float = 0.0
) -> list[tuple[float, float]]:
    predictor.predict_all(REQUEST, options, now)
    return list(predictor.tree_times(REQUEST, options))


def sent(predictor: OnlinePredictor, to: Option, number: int) -> SentAttempt:
    """One of several requests, predicted by the trees too."""
    times_of(predictor, [to])
    assert to.prediction is not None
    attempt = SentAttempt(replace(REQUEST, id=str(number)), to.candidate, to.instance, to.prediction)
    predictor.observe_dispatch(attempt, 0.0)
    return attempt


def test_all_trees_take_all_rows_down() -> None:
    draw = np.random.default_rng(1)
    feature = draw.integers(0, len(TREE_FEATURES), (5, 7))
    threshold, value = draw.normal(size=(5, 7)), draw.normal(size=(5, 8))
    model = TreeModel({
        "feature": feature, "threshold": threshold, "value": value, "base": np.array([1.0, 2.0]),
        "ttft_trees": np.array(3),
    })  # fmt: skip
    rows = draw.normal(size=(9, len(TREE_FEATURES)))
    expected = np.tile([1.0, 2.0], (9, 1))
    for at, row in enumerate(rows):
        for tree in range(5):
            node = 0
            while node < 7:
                node = 2 * node + 1 + int(row[feature[tree, node]] > threshold[tree, node])
            expected[at, int(tree >= 3)] += value[tree, node - 7]
    np.testing.assert_allclose(model.predict(rows), expected)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("feature", np.array([[len(TREE_FEATURES)], [0]])),
        ("feature", np.zeros((2, 2), int)),
        ("threshold", np.zeros((3, 1))),
        ("value", np.zeros((2, 1))),
        ("base", np.zeros(3)),
        ("ttft_trees", np.array(2)),
    ],
)
def test_arrays_that_are_no_forests_are_refused(name: str, array: np.ndarray) -> None:
    with pytest.raises(ArtifactError):
        TreeModel.load(artifact(**{name: array}))


def test_rows_tell_load_and_hardware() -> None:
    predictor = OnlinePredictor()
    one, slow = option("one"), option("slow", SLOW)
    one.instance.report = LoadReport(running=3, waiting=2, kv_usage=0.25)
    one.instance.recount()
    one.instance.dispatched(500)
    predictor.predict_all(REQUEST, [one, slow], 0.0)
    rows = []
    for each in (one, slow):
        assert isinstance(each.prediction, OnlinePrediction)
        costs = predictor.stats.of(each.candidate, each.instance).costs
        rows.append(tree_row(each.instance, costs, each.prediction.estimate))
    busy, idle = (dict(zip(TREE_FEATURES, features, strict=True)) for features, _ in rows)
    (busy_ttft, _), (idle_ttft, _) = (bases for _, bases in rows)
    assert (busy["kv_usage"], busy["kv_reported"], idle["kv_reported"]) == (0.25, 1.0, 0.0)
    assert busy["kv_held"] == pytest.approx(0.015)
    assert exp(busy["waiting"]) - 1 == pytest.approx(2)
    assert exp(busy["running"]) - 1 == pytest.approx(6)
    assert exp(busy["prefill_tokens_in_flight"]) - 1 == pytest.approx(500)
    assert idle["lone_step"] == pytest.approx(log(0.1))
    assert idle["backlog_by_prefill"] == 0.0
    assert idle["step_by_lone"] == pytest.approx(log(SLOW.step_s(0, 1, 1000) / SLOW.step_s(0, 1, 0)))
    assert idle_ttft == pytest.approx(log(SLOW.prefill_s(1000)))
    assert busy_ttft == pytest.approx(log(PROFILE.prefill_s(1000) + PROFILE.prefill_s(500)))


def test_an_offset_is_the_quantile_of_what_was_seen() -> None:
    offset = TreeOffset()
    for at in range(2000):
        offset.observe(((at * 37) % 100) / 100)
    assert offset.count == TreeOffset.WINDOW
    assert offset.value == pytest.approx(TAU, abs=0.03)


def test_an_offset_starts_at_none_and_moves_little_by_one_error() -> None:
    offset = TreeOffset()
    assert offset.value == 0.0
    offset.observe(0.0)
    assert abs(offset.value) < 0.2


def test_a_queue_speaks_for_itself_once_it_was_seen() -> None:
    group = TreeGroup()
    for _ in range(40):
        group.observe(0, False, 0.0)
    assert group.value(0, True) == group.value(0, False)
    for _ in range(40):
        group.observe(0, True, 1.0)
    assert group.value(0, True) == pytest.approx(1.0)
    assert group.value(0, False) == pytest.approx(0.0)
    assert group.value(1, True) == 0.0


def test_times_follow_hardware_load_and_the_wait_so_far() -> None:
    predictor = OnlinePredictor(Models(trees=TreeModel.load(artifact())))
    fast, slow = option("fast"), option("slow", SLOW)
    (fast_ttft_s, fast_tpot_s), (slow_ttft_s, slow_tpot_s) = times_of(predictor, [fast, slow], now=2.0)
    assert fast_ttft_s == pytest.approx(2.0 + PROFILE.prefill_s(1000))
    assert slow_ttft_s == pytest.approx(2.0 + SLOW.prefill_s(1000))
    assert fast_tpot_s == pytest.approx(1.5 * PROFILE.step_s(0, 1, 1000))
    assert slow_tpot_s == pytest.approx(1.5 * SLOW.step_s(0, 1, 1000))
    fast.instance.dispatched(1000)
    assert times_of(predictor, [fast])[0][0] == pytest.approx(4.0 * PROFILE.prefill_s(1000))


def test_a_model_that_must_be_loaded_takes_that_long() -> None:
    predictor = OnlinePredictor(Models(trees=TreeModel.load(artifact())))
    one = option("one")
    one.instance.report = LoadReport(loaded_models=frozenset())
    assert times_of(predictor, [one])[0][0] == pytest.approx(PROFILE.load_s + PROFILE.prefill_s(1000))


def test_an_engine_slower_than_its_profile_is_learned_for_its_kind() -> None:
    predictor = OnlinePredictor(Models(trees=TreeModel.load(artifact())))
    one, twin, other = option("one", hardware="A"), option("twin", hardware="A"), option("other")
    before = times_of(predictor, [one, twin, other])
    for at in range(60):
        attempt = sent(predictor, one, at)
        predictor.observe_ttft(attempt, 3 * before[0][0], 1.0)
        predictor.observe_end(attempt, 20, None, 1000, 2 * before[0][1], 2.0)
    after = times_of(predictor, [one, twin, other])
    for at in range(2):
        assert after[at][0] == pytest.approx(3 * before[at][0])
        assert after[at][1] == pytest.approx(2 * before[at][1])
    assert after[2] == pytest.approx(before[2])
    predictor.forget(["one"])
    assert times_of(predictor, [twin])[0] == after[1]
    predictor.forget(["twin"])
    assert times_of(predictor, [twin])[0] == pytest.approx(before[1])


def test_a_lost_request_shows_only_that_it_was_late() -> None:
    predictor = OnlinePredictor(Models(trees=TreeModel.load(artifact())))
    one = option("one")
    before = times_of(predictor, [one])[0][0]

    def lose(waited_s: float) -> None:
        for at in range(40):
            predictor.observe_loss(sent(predictor, one, at), waited_s, False, 0, None, waited_s)

    lose(0.5 * before)
    assert times_of(predictor, [one])[0][0] == pytest.approx(before)
    lose(5 * before)
    assert times_of(predictor, [one])[0][0] == pytest.approx(5 * before)


def test_without_the_artifact_there_are_no_times() -> None:
    predictor = OnlinePredictor()
    options = [option("one")]
    predictor.predict_all(REQUEST, options, 0.0)
    assert predictor.tree_times(REQUEST, options) is None
    trained = OnlinePredictor(Models(trees=TreeModel.load(artifact())))
    assert trained.tree_times(REQUEST, [option("one")]) is None
