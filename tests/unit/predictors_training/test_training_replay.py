"""Runs driven through the objects that serve."""

import math
from dataclasses import replace

import numpy as np
import pytest

from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact
from predictors.learned.latency import EVENT_FEATURES, LATENCY_FEATURES, SHAPES, TARGET_FEATURES, LatencyModel
from predictors.training.dataset import Attempt, Dataset, DatasetError, Run, State
from predictors.training.replay import MODEL, PHYSICAL, SERVED, episodes, replay
from tests.unit.predictors_training.latency_runs import served

RUN = Run("r", "made", "i", "m", level="1")
IN_FLIGHT, AWAITING = (TARGET_FEATURES.index(name) for name in ("in_flight", "awaiting"))


def attempt(at_s: float, first_s: float | None, end_s: float | None, **changed: object) -> Attempt:
    return Attempt("r", "m", at_s, 100, first_s, end_s, 11, **changed)  # type: ignore[arg-type]


def test_each_request_has_its_outcome():
    found = replay(RUN, [attempt(1.0, 1.5, 2.5), attempt(2.0, 4.0, 4.5)], [])
    assert found.actual[:, 0] == pytest.approx([math.log(0.5), math.log(2.0)])
    assert found.actual[:, 1] == pytest.approx([math.log(0.1), math.log(0.05)])
    assert found.residual == pytest.approx(found.actual - found.corrected)
    assert (found.longer_than == -math.inf).all()
    assert found.events.shape == (6, len(EVENT_FEATURES))
    assert found.predicted == {}


def test_a_decision_sees_what_came_before_it_and_nothing_later():
    early = [attempt(1.0, 1.5, 2.5), attempt(2.0, 4.0, 4.5), attempt(3.0, 5.0, 6.0)]
    late = [early[0], attempt(2.0, 9.0, 9.5), attempt(3.0, None, 8.0, ended_how="failed")]
    one, other = replay(RUN, early, []), replay(RUN, late, [])
    assert (one.targets == other.targets).all()
    assert (one.corrected == other.corrected).all()
    assert one.seen.tolist() == other.seen.tolist() == [0, 2, 4]
    assert np.expm1(one.targets[:, IN_FLIGHT]) == pytest.approx([0, 1, 1])


def test_order_of_the_rows_does_not_matter():
    rows = [attempt(1.0, 1.5, 2.5), attempt(2.0, 4.0, 4.5), attempt(3.0, 5.0, 6.0)]
    states = [State("r", 1.2, 1, 0, 0.1), State("r", 2.2, 2, 1, 0.2)]
    one, other = replay(RUN, rows, states), replay(RUN, rows[::-1], states[::-1])
    assert (one.targets == other.targets).all()
    assert (one.events == other.events).all()


def test_a_request_without_a_first_token_is_censored():
    found = replay(RUN, [attempt(1.0, None, 3.0, ended_how="cancelled"), attempt(2.0, None, None)], [])
    assert np.isnan(found.actual).all()
    assert found.longer_than.tolist() == [pytest.approx(math.log(2.0)), -math.inf]
    # What ended has left the queue; what never did is still there.
    assert found.events[-1][EVENT_FEATURES.index("event.in_flight")] == pytest.approx(math.log(2.0))


def test_an_attempt_that_failed_at_once():
    found = replay(RUN, [attempt(1.0, None, 1.0, ended_how="failed"), attempt(2.0, 2.5, 3.0)], [])
    assert np.expm1(found.targets[:, IN_FLIGHT]).tolist() == [0.0, 0.0]


def test_of_a_cluster_each_sees_an_average_member():
    rows = [attempt(1.0 + 0.1 * at, 5.0, 6.0) for at in range(9)]
    found = replay(replace(RUN, replicas=4), rows, [])
    assert np.expm1(found.targets[:, IN_FLIGHT]) == pytest.approx(np.arange(9) / 4)


def test_tokens_that_a_cache_should_have_held_shorten_the_estimate():
    plain = replay(RUN, [replace(attempt(1.0, 5.0, 6.0), prompt_tokens=9000)], [])
    cached = replay(RUN, [replace(attempt(1.0, 5.0, 6.0), prompt_tokens=9000, cached_tokens=8000)], [])
    assert cached.corrected[0, 0] < plain.corrected[0, 0]


@pytest.mark.parametrize("odd", [attempt(1.0, 1.0, 2.0), attempt(1.0, 0.5, 2.0), attempt(1.0, 3.0, 2.0)])
def test_times_that_are_no_times_are_refused(odd: Attempt):
    with pytest.raises(DatasetError, match="run r: "):
        list(episodes(Dataset(runs=(RUN,), attempts=(odd,))))


def test_with_a_model_it_has_what_was_served():
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(0.0, 0.05, shape) for name, shape in SHAPES.items()}
    arrays |= {name: np.ones(SHAPES[name]) for name in ("event_scale", "target_scale", "widths")}
    model = LatencyModel.load(Artifact("latency", LATENCY_FEATURES, arrays))
    data = served(levels=1)
    (plain,) = episodes(data)
    (found,) = episodes(data, model)
    assert set(found.predicted) == {PHYSICAL, MODEL, SERVED}
    assert {each.shape for each in found.predicted.values()} == {(60, 2, len(TAUS))}
    # The model changes nothing of what is physical, nor of what it is shown itself.
    assert found.corrected == pytest.approx(plain.corrected)
    assert found.targets == pytest.approx(plain.targets)
    # Factors that serve are refreshed now and then, quantiles are read off.
    assert found.predicted[PHYSICAL][:, :, TAUS.index(0.5)] == pytest.approx(found.corrected, abs=0.2)
