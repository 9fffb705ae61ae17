"""The latency model as it serves."""

import numpy as np
import pytest

from predictors.kernels import InstanceHistory
from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.latency import (
    EVENT_FEATURES,
    HIDDEN,
    LATENCY_FEATURES,
    SHAPES,
    TARGET_FEATURES,
    WIDTH,
    LatencyModel,
)
from router.core.state import Instance


def drawn(seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays |= {name: np.ones(SHAPES[name], np.float32) for name in ("event_scale", "target_scale", "widths")}
    return arrays


def artifact(arrays: dict[str, np.ndarray]) -> Artifact:
    return Artifact("latency", LATENCY_FEATURES, arrays, digest="ab")


def states(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, 2 * HIDDEN + WIDTH)).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def test_step_is_an_lstm():
    arrays = drawn()
    model = LatencyModel.load(artifact(arrays))
    state = model.start()
    row = tuple(np.linspace(-1.0, 1.0, len(EVENT_FEATURES)).tolist())
    wanted_hidden = wanted_cell = np.zeros(HIDDEN)
    for _ in range(3):
        event = np.array(row) - arrays["event_mean"]
        gates = np.concatenate([event, wanted_hidden]) @ arrays["lstm"] + arrays["lstm_bias"]
        take, keep, new, show = np.split(gates, 4)
        wanted_cell = sigmoid(keep) * wanted_cell + sigmoid(take) * np.tanh(new)
        wanted_hidden = sigmoid(show) * np.tanh(wanted_cell)
        model.step(row, state)
    hidden, encoding = state[:HIDDEN], state[2 * HIDDEN :]
    assert hidden == pytest.approx(wanted_hidden, abs=1e-5)
    assert encoding == pytest.approx(wanted_hidden @ arrays["join_encoding"] + arrays["join_bias"], abs=1e-5)


def test_quantiles_never_cross_whatever_comes():
    model = LatencyModel.load(artifact(drawn()))
    rng = np.random.default_rng(2)
    targets = rng.normal(0.0, 100.0, (200, len(TARGET_FEATURES)))
    found = model.quantiles(states(rng, 200), targets)
    assert found.shape == (200, 2, len(TAUS))
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=2) >= 0.0).all()


def test_candidates_do_not_influence_each_other():
    model = LatencyModel.load(artifact(drawn()))
    rng = np.random.default_rng(3)
    targets = rng.normal(size=(5, len(TARGET_FEATURES)))
    of = states(rng, 5)
    together = model.quantiles(of, targets)
    for at in range(5):
        assert model.quantiles(of[at : at + 1], targets[at : at + 1])[0] == pytest.approx(
            together[at], abs=1e-4
        )


def test_what_it_is_given_stays_as_it_was():
    model = LatencyModel.load(artifact(drawn()))
    targets, of = np.ones((3, len(TARGET_FEATURES))), np.ones((3, 2 * HIDDEN + WIDTH), np.float32)
    model.quantiles(of, targets)
    assert (targets == 1.0).all()
    assert (of == 1.0).all()
    before = model.start().copy()
    model.quantiles([model.start()], targets[:1])
    assert (model.start() == before).all()


def test_widths_stretch_from_the_median():
    arrays = drawn()
    plain = LatencyModel.load(artifact(arrays))
    wide = LatencyModel.load(artifact({**arrays, "widths": np.array([[2, 1, 2, 2, 3]] * 2, np.float32)}))
    targets, of = np.zeros((1, len(TARGET_FEATURES))), np.zeros((1, 2 * HIDDEN + WIDTH), np.float32)
    one, other = plain.quantiles(of, targets)[0], wide.quantiles(of, targets)[0]
    assert other - other[:, 1:2] == pytest.approx((one - one[:, 1:2]) * [2, 1, 2, 2, 3], rel=1e-4)


def test_a_history_with_a_model_keeps_its_state_up_to_date():
    model = LatencyModel.load(artifact(drawn()))
    history, recorded, instance = (
        InstanceHistory(model.network),
        InstanceHistory(None),
        Instance("a", "vllm", {}),
    )
    state = model.start()
    assert (history.state == state).all()
    for at in range(3):
        history.reported(instance, float(at))
        recorded.reported(instance, float(at))
    for row in recorded.events:
        model.step(row, state)
    assert (history.state == state).all()
    assert history.events == []


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {**drawn(), "middle": np.zeros((3, 3))},
            r"middle does not fit: float64 \(3, 3\), where this version has 128 x 128: train",
        ),
        ({k: v for k, v in drawn().items() if k != "skip"}, "without its skip"),
        ({**drawn(), "event_scale": np.zeros(len(EVENT_FEATURES))}, "not positive"),
        ({**drawn(), "widths": np.array([[1.0, 1.0, 3.0, 2.0, 1.0]] * 2)}, "cross"),
    ],
)
def test_an_artifact_that_does_not_fit_is_refused(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        LatencyModel.load(artifact(arrays))
