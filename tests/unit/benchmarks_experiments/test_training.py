"""Folds, what is judged, and the means over folds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.datasets.public import present
from benchmarks.evaluate.figures import Figure
from benchmarks.experiments import length_training
from benchmarks.experiments.latency_training import folds, gpu_of
from benchmarks.experiments.length_training import LengthTraining, over_folds
from predictors.training.dataset import Dataset
from tests.unit.predictors_training.made_lengths import TINY, made_data


def test_equal_names_share_a_fold() -> None:
    names = [f"gpu{at % 7}" for at in range(60)]
    found = folds(names, seed=1)
    assert len({(name, fold) for name, fold in zip(names, found.tolist(), strict=True)}) == 7
    assert np.bincount(found).min() >= 16


@pytest.mark.parametrize(
    ("hardware", "gpu"), [("4xa100-80g", "a100-80g"), ("l4", "l4"), ("rtx-4090", "rtx-4090"), (None, "")]
)
def test_the_number_of_gpus_does_not_count(hardware: str | None, gpu: str) -> None:
    assert gpu_of(hardware) == gpu


def test_the_mean_over_folds_has_the_interval_of_independent_parts() -> None:
    figures = [
        Figure("MAE", "LSTM", "all", value, "tokens", value - 3, value + 3, 10) for value in (1.0, 2.0, 6.0)
    ]
    mean = over_folds(figures)
    assert (mean.value, mean.rows) == (3.0, 30)
    assert mean.high == pytest.approx(3 + 3 / np.sqrt(3))
    assert over_folds([*figures, None]) is None


def test_no_folder_has_no_sets() -> None:
    assert present(None) == []


def test_lengths_are_judged_on_prompts_that_were_not_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made, nothing = made_data(150), "nothing of the prompt"
    monkeypatch.setattr(length_training, "present", lambda *_: ["made"])
    monkeypatch.setattr(length_training, "read_public", lambda *_: made)
    monkeypatch.setattr(length_training, "_SETTINGS", TINY)
    monkeypatch.setattr(length_training, "SETS", ("made",))
    monkeypatch.setattr(length_training, "_PARTS", (0.6,))
    monkeypatch.setattr(length_training, "FEATURES", {nothing: length_training.FEATURES[nothing]})
    lengths = LengthTraining(None, 1, lambda _: None)  # type: ignore[arg-type]
    for to, test in lengths.folds:
        assert not _groups(to) & _groups(test)
        assert _groups(to) | _groups(test) == _groups(made)
    assert lengths.unseen_texts(None) == {each.text for each in lengths.folds[0][1].prompts}  # type: ignore[arg-type]
    (table,) = lengths.parts().tables
    errors = {(str(row[0]), row[1]): row[2] for row in table.rows}
    part = "source made"
    # The topic, a word of the prompt, decides the length; so does the family, a little.
    assert errors["all", part] < 0.8 * errors[nothing, part]
    assert errors["all", part] < errors["no model of the family llama", part]


def _groups(data: Dataset) -> set[str]:
    return {each.group for each in data.prompts}
