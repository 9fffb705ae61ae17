"""The memory model's evaluation: errors beside both baselines, by source, with and without reports."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluate.memory import CLOSED_FORM, LAST_REPORT, MODEL, evaluate
from predictors.learned.artifact import Artifact
from predictors.learned.memory import MEMORY_FEATURES, SHAPES
from predictors.training.dataset import Attempt, Dataset, DatasetError, Run, State


def artifact(bias: float = 0.0) -> Artifact:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    arrays["scale"] += 1.0
    arrays["bias"] += bias
    return Artifact("memory", MEMORY_FEATURES, arrays)


def made(use: float = 0.5, start_s: float = 0.0, runs: int = 3) -> Dataset:
    """Engines whose KV use never changes."""
    return Dataset(
        runs=tuple(Run(f"r{i}", "made", f"i{i}", "m") for i in range(runs)),
        attempts=tuple(
            Attempt(f"r{i}", "m", start_s + at, 10, start_s + at + 0.5, start_s + at + 2.0, 5)
            for i in range(runs)
            for at in range(10)
        ),
        states=tuple(State(f"r{i}", start_s + at, 1, 0, use) for i in range(runs) for at in range(14)),
    )


def test_figures_of_a_model_that_is_the_closed_form() -> None:
    found = evaluate(artifact(), made(), None)
    by = {(each.name, each.of, each.part): each for each in found.figures}
    mae = {of: by["MAE", of, "all"].value for of in (MODEL, CLOSED_FORM, LAST_REPORT)}
    assert mae[MODEL] == pytest.approx(mae[CLOSED_FORM], abs=LEAST)
    assert mae[LAST_REPORT] == pytest.approx(0.0)
    assert by["MAE", MODEL, "all"].rows == 30
    assert by["MAE", f"{MODEL} - {CLOSED_FORM}", "all"].is_difference
    assert ("MAE", LAST_REPORT, "made, the same without reports") not in by
    assert ("MAE", MODEL, "made, the same without reports") in by
    assert "missed" in found.notes[0]
    assert found.kind == "memory"
    assert {curve.of for curve in found.curves} == {MODEL, "as predicted"}


LEAST = 0.006  # ratios below `LEAST_RATIO` are told apart no further


def test_a_model_that_is_nearer_reaches_the_target() -> None:
    # Next to nothing is held by what is known, half of the memory is used.
    found = evaluate(artifact(bias=5.3), made(), None)
    gain = next(each for each in found.figures if each.name.startswith("part") and each.part == "all")
    assert 0.5 < gain.value <= 1.0
    assert gain.low is not None
    assert "reached" in found.notes[0]


def test_training_rows_are_no_test_rows() -> None:
    with pytest.raises(DatasetError, match="in the training part"):
        evaluate(artifact(), made(), made())
    later = evaluate(artifact(), made(start_s=100.0), made())
    assert later.figures


def test_data_without_reports_tell_nothing() -> None:
    with pytest.raises(DatasetError, match="no run with answers and reports"):
        evaluate(artifact(), Dataset(), None)
