"""The memory model as it serves: the closed form where it has learned nothing, and always a share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictors.kernels import memory_rows
from predictors.kernels.reference.latency_networks import LEAST_RATIO
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.latency import TARGET_FEATURES
from predictors.learned.memory import MEMORY_FEATURES, SHAPES, MemoryModel


def artifact(**changed: np.ndarray) -> Artifact:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    arrays["scale"] += 1.0
    return Artifact("memory", MEMORY_FEATURES, {**arrays, **changed})


def targets(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, len(TARGET_FEATURES)))


def test_a_model_that_learned_nothing_is_the_closed_form() -> None:
    held = [0.0, 0.1, 0.5, 0.9, 1.0]
    predicted = MemoryModel.load(artifact()).predict(
        memory_rows(held, [None, 0.3, 0.3, None, 0.0], targets(5))
    )
    np.testing.assert_allclose(predicted, np.clip(held, LEAST_RATIO, 1 - LEAST_RATIO), atol=1e-6)


def test_rows_say_what_engines_tell_and_what_they_do_not() -> None:
    given = targets(2)
    rows = memory_rows([0.25, 0.25], [0.75, None], given)
    assert rows.shape == (2, len(MEMORY_FEATURES))
    columns = dict(zip(MEMORY_FEATURES[:3], rows[:, :3].T.tolist(), strict=True))
    assert columns["closed_form"] == pytest.approx([-np.log(3)] * 2)
    assert columns["reported"] == pytest.approx([np.log(3), -np.log(3)])
    assert columns["kv_known"] == [1.0, 0.0]
    np.testing.assert_allclose(rows[:, 3:], given, rtol=1e-6)


def test_a_correction_is_in_logits() -> None:
    model = MemoryModel.load(artifact(bias=np.array([np.log(3.0)])))
    assert model.predict(memory_rows([0.5], [0.5], targets(1)))[0] == pytest.approx(0.75)
    skip = np.zeros(len(MEMORY_FEATURES))
    skip[2] = 1.0
    reported, not_reported = MemoryModel.load(artifact(skip=skip)).predict(
        memory_rows([0.5] * 2, [0.1, None], targets(2))
    )
    assert reported == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert not_reported == pytest.approx(0.5)


def test_nothing_makes_it_leave_the_unit_interval() -> None:
    rng = np.random.default_rng(2)
    wild = artifact(
        **{name: rng.normal(scale=100.0, size=shape) for name, shape in SHAPES.items() if name != "scale"}
    )
    predicted = MemoryModel.load(wild).predict(
        memory_rows([0.0, 0.5, 1.0, 0.2], [1.0, None, 0.0, 7.0], 1e6 * targets(4))
    )
    assert np.isfinite(predicted).all()
    assert ((predicted >= 0.0) & (predicted <= 1.0)).all()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            artifact(last=np.zeros(3)),
            r"last does not fit: float64 \(3,\), where this version has 16: train it anew",
        ),
        (replace(artifact(), arrays={"mean": np.zeros(SHAPES["mean"])}), "without its scale"),
        (artifact(scale=np.zeros(SHAPES["scale"])), "not positive"),
    ],
)
def test_an_artifact_that_does_not_fit_is_refused(broken: Artifact, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        MemoryModel.load(broken)
