"""What is explained of lengths: on sets that the length model has not seen, means of other prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.predicted import LENGTH_MODEL, MEAN_LENGTH, lengths_explained
from predictors.learned.models import UNTRAINED, load_models
from tests.data_files import put

MODELS = {"chatty": 400.0, "terse": 50.0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two models whose answers to 80 prompts differ by a factor of 8 and, among themselves, by chance."""
    folder = tmp_path / "alpaca_eval"
    rng = np.random.default_rng(1)
    wins = "win_vs_gpt4t_weighted,win_vs_gpt4t_fn,win_vs_gpt4t_cot,win_vs_davinci003"
    prompts, rows = [], f"prompt_id,model,out_tokens,{wins}\n"
    for at in range(80):
        words = " ".join(map(str, rng.integers(0, 10_000, 30)))
        prompts.append({"prompt_id": f"{at:016x}", "prompt": words, "source": "s"})
        for model, tokens in MODELS.items():
            rows += f"{at:016x},{model},{round(tokens * np.exp(rng.normal(scale=0.2)))},,,,\n"
    put(folder / "prompts.jsonl.gz", prompts)
    put(folder / "responses.csv.gz", rows)
    return tmp_path


def test_the_mean_of_a_model_explains_the_model_and_nothing_inside_it(data: Path) -> None:
    by_predictor = {each.of: each for each in lengths_explained(data, load_models(), set(), seed=1)}
    assert by_predictor.keys() == {LENGTH_MODEL, MEAN_LENGTH}
    mean = by_predictor[MEAN_LENGTH]
    between = np.log(8) ** 2 / 4
    assert mean.whole.value == pytest.approx(between / (between + 0.04), abs=0.03)
    assert mean.inside.value == pytest.approx(0, abs=0.1)
    assert mean.whole.low < mean.whole.value < mean.whole.high
    assert mean.whole.rows == by_predictor[LENGTH_MODEL].whole.rows
    assert 40 < mean.whole.rows < 120  # about half of the prompts are for the means


def test_nothing_is_judged_on_what_was_trained_on(data: Path) -> None:
    assert list(lengths_explained(data, load_models(), {"alpaca_eval"}, seed=1)) == []
    assert list(lengths_explained(data, UNTRAINED, set(), seed=1)) == []
    assert list(lengths_explained(data / "alpaca_eval", load_models(), set(), seed=1)) == []
