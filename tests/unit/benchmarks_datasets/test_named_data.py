"""What a user may name as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.datasets.sources import load
from predictors.training.dataset import Dataset, DatasetError, Run, write
from tests.data_files import put
from tests.unit.benchmarks_datasets.published import prompts


def test_folders_are_told_apart_and_joined(tmp_path: Path) -> None:
    write(Dataset(runs=(Run("r", "made", "i", "m"),)), tmp_path / "set")
    prompts(tmp_path / "public" / "llmrouter", {"p": "What is love?"})
    put(
        tmp_path / "public" / "llmrouter" / "responses.csv.gz", [{"prompt_id": "p", "model": "m", "score": 1}]
    )
    data = load([str(tmp_path / "set"), str(tmp_path / "public")])
    assert data.sources == ["llmrouter", "made"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("nowhere", "no such file or folder"), ("", "neither a data set"), ("text", "cannot open the store")],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "text").write_text("no database")
    with pytest.raises(DatasetError, match=told) as error:
        load([str(tmp_path / name)])
    assert "\n" not in str(error.value)


def test_nothing_named() -> None:
    with pytest.raises(DatasetError, match="no data"):
        load([])
