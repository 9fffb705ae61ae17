"""What an artifact tells of what made it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import router
from benchmarks.datasets.contents import rows_by_source
from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.training import about
from benchmarks.training.about import commit, versions, with_about
from predictors.learned.artifact import Artifact, to_bytes
from predictors.training.dataset import joined

from .made import answers, log

PLAIN = Artifact("length", ("words",), {"a": np.ones(3)}, {"settings": {"width": 32}})
FOUND = Evaluation(
    "length",
    (
        Figure("MAE", "ours", "all", 1 / 3, "tokens", 0.3, math.nan, 50),
        Figure("MAE", "ours", "family llama", 0.4, "tokens"),
    ),
)


def test_rows_by_source() -> None:
    data = joined([answers(30), log(("1", "2"), 10, started_at_s=86_400.0)])
    made, logged = sorted(rows_by_source(data), key=lambda row: row["name"], reverse=True)
    assert made == {
        **{"name": "made", "licence": "CC0", "prompts": 30, "answers": 60},
        **{"first_day": "2023-11-14", "last_day": "2023-11-14"},
    }
    assert logged == {
        **{"name": "log", "licence": "CC0", "runs": 2, "attempts": 20},
        **{"first_day": "1970-01-02", "last_day": "1970-01-02"},
    }


def test_unknown_licences_and_days_are_null() -> None:
    (row,) = rows_by_source(replace(log(), about={}))
    assert (row["licence"], row["first_day"], row["last_day"]) == (None, None, None)


def test_an_artifact_tells_data_code_figures_settings_and_versions() -> None:
    made = with_about(PLAIN, answers(10), FOUND, seed=3, held_out=0.2, training_part="part")
    assert made.about["settings"] == {"width": 32}
    assert made.about["data"][0]["answers"] == 20
    assert (made.about["seed"], made.about["held_out"], made.about["final"]) == (3, 0.2, False)
    assert made.about["training_part"] == "part"
    assert made.about["metrics"] == [
        {
            "name": "MAE",
            "of": "ours",
            "part": "all",
            "value": 0.333333,
            "unit": "tokens",
            "low": 0.3,
            "rows": 50,
        }
    ]
    assert made.about["metrics_are_of"] == "the held-out part"
    assert {"numpy", "torch", "scikit-learn"} <= made.about["versions"].keys()
    assert made.about["commit"] == commit()
    assert to_bytes(made) == to_bytes(
        with_about(PLAIN, answers(10), FOUND, seed=3, held_out=0.2, training_part="part")
    )


def test_without_a_checkout_of_its_own_the_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "ROOT", tmp_path)
    assert commit() == f"version {router.__version__}"
    # A checkout around it is someone else's.
    monkeypatch.setattr(about, "ROOT", Path(__file__).parent)
    assert commit() == f"version {router.__version__}"


def test_versions_leave_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "_PACKAGES", ("numpy", "no-such-package-of-anyone"))
    assert versions() == {"numpy": np.__version__}
