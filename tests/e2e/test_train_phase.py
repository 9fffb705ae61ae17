"""Collect, train, serve, train again from the records, evaluate: by the commands, over real sockets.

The engines are emulated; all else is what a user runs. A vLLM and an Ollama kind, three profiles, three loads.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from benchmarks.evaluate.figures import pinball
from predictors.kernels import LengthTable
from predictors.kernels.length_bins import PRIOR_SHARES
from predictors.learned import artifact
from predictors.learned.artifact import path_of
from predictors.learned.length_model import LENGTH_FEATURES, LengthModel
from predictors.training import dataset
from predictors.training.dataset import Dataset, split_prompts
from tests.e2e.world import MODELS, SEED, THINGS, headway, served, write_prompts

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

KINDS = ("length", "latency", "memory")
LEVELS = ("10/s", "20/s", "40/s")
REQUESTS = 48
ASKED = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection over the fleet: FOLDER/data."""
    folder = tmp_path_factory.mktemp("train-phase")
    (folder / "fleet.yaml").write_text(MODELS, encoding="utf-8")
    write_prompts(folder / "prompts.jsonl")
    words = ["--config", str(folder / "fleet.yaml"), "--prompts", str(folder / "prompts.jsonl")]
    words += ["--rates", "10,20,40", "--requests", str(REQUESTS), "--max-tokens", "512", "--report-s", "0.1"]
    headway(
        "collect", *words, "--emulate-lengths", "--seed", str(SEED), "--out", str(folder / "data"), "--json"
    )
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> Dataset:
    return dataset.read(folder / "data")


@pytest.fixture(scope="module")
def reports(folder: Path) -> Mapping[str, Any]:
    """What training told of each kind, its figures on what it held out; the artifacts are in FOLDER/artifacts."""

    def train(kind: str) -> Any:
        words = ["--data", str(folder / "data"), "--out", str(folder / "artifacts"), "--json"]
        # What is no better than the closed form is not written, and a few runs may miss that.
        more = ["--data", "emulated"] if kind == "memory" else []
        return json.loads(headway("train", kind, *words, *more))

    with ThreadPoolExecutor() as pool:
        return dict(zip(KINDS, pool.map(train, KINDS), strict=True))


@pytest.fixture(scope="module")
def trained(folder: Path, reports: Mapping[str, Any]) -> Path:
    """The artifacts of all three kinds."""
    assert {each["kind"] for each in reports.values()} == set(KINDS)
    return folder / "artifacts"


def test_the_collection_is_whole(data: Dataset) -> None:
    assert len(data.attempts) == 3 * 3 * REQUESTS
    assert {each.ended_how for each in data.attempts} == {"ok"}
    assert {(run.instance, run.kind, run.level) for run in data.runs} == {
        (name, kind, level)
        for name, kind in (("quick", "vllm"), ("slow", "vllm"), ("desk", "ollama"))
        for level in LEVELS
    }
    assert len(data.prompts) == 3 * len(THINGS)
    assert len(data.answers) == 2 * len(data.prompts)
    told = {run.id: run.kind for run in data.runs}
    assert {told[each.run] for each in data.states} == {"vllm"}
    assert max(each.running or 0 for each in data.states) > 1


def test_trained_lengths_beat_the_prior_on_prompts_never_seen(data: Dataset, trained: Path) -> None:
    _, held_out = split_prompts(data, 0.2, 1)
    features = {each.id: each.features for each in held_out.prompts}
    model = LengthModel.load(artifact.load(path_of(trained, "length"), "length", LENGTH_FEATURES))
    prior = LengthTable(PRIOR_SHARES)
    answers = [each for each in held_out.answers if not each.capped]
    assert len(answers) > 20
    tables = [
        LengthTable(model.shares(features[each.prompt], [(each.model, each.family)])[0].tolist())
        for each in answers
    ]
    actual = np.array([float(each.output_tokens or 0) for each in answers])
    for probability in (0.5, 0.9):
        ours = pinball(actual, np.array([each.quantile(probability) for each in tables]), probability)
        priors = pinball(actual, np.full(len(actual), prior.quantile(probability)), probability)
        assert ours.mean() < 0.8 * priors.mean()


def test_figures_of_what_was_held_out(reports: Mapping[str, Any]) -> None:
    check_errors(reports)


def test_trained_predictors_can_be_evaluated(folder: Path, trained: Path) -> None:
    words = ["--artifact", str(trained), "--data", str(folder / "data"), "--json"]
    results = {each["kind"]: each for each in json.loads(headway("evaluate", *words))["results"]}
    for kind, result in results.items():
        assert result["artifact"] == artifact.load(path_of(trained, kind)).name
    check_errors(results)


def check_errors(results: Mapping[str, Any]) -> None:
    """Generous: the machine may be busy. An answer has at most 512 tokens, KV use is a share."""
    assert set(results) == set(KINDS)
    bounds = {
        ("length", "MAE", "LSTM"): 200.0,
        ("latency", "TTFT median relative error", "LSTM"): 3.0,
        ("latency", "TPOT median relative error", "LSTM"): 3.0,
        ("memory", "MAE", "memory model"): 0.25,
    }
    for (kind, name, of), bound in bounds.items():
        values = [
            each["value"] for each in results[kind]["figures"] if (each["name"], each["of"]) == (name, of)
        ]
        assert values
        assert all(value is not None and 0 < value < bound for value in values), (kind, name, values)


# --- serving ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def records(folder: Path, trained: Path) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Rows of the requests that a gateway with the artifacts has answered; FOLDER/headway.db."""
    config = folder / "trained.yaml"
    config.write_text(
        MODELS
        + f"predictors: {{directory: {json.dumps(str(trained))}}}\n"
        + f"store: {{url: {json.dumps(f'sqlite+aiosqlite:///{folder}/headway.db')}}}\n",
        encoding="utf-8",
    )
    with (
        served(config, folder) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):

        def ask(number: int) -> int:
            routing = {"slo": {"ttft_ms": 2000.0, "e2e_ms": 20000.0}} if number % 2 else {}
            answer = client.chat.completions.create(
                model="auto" if number % 4 else "qwen2.5-7b",
                messages=[
                    {"role": "user", "content": f"Describe a {THINGS[number % len(THINGS)]} to a child."}
                ],
                max_tokens=200,
                extra_body={"routing": routing},
            )
            return answer.usage.completion_tokens

        with ThreadPoolExecutor(6) as pool:
            tokens = list(pool.map(ask, range(ASKED)))
    assert min(tokens) >= 1
    with closing(sqlite3.connect(folder / "headway.db")) as database, database:
        database.row_factory = sqlite3.Row
        yield [dict(row) for row in database.execute("SELECT * FROM requests ORDER BY received_at")]
    database.close()


def test_records_name_the_artifacts_and_have_their_predictions(
    records: Sequence[Mapping[str, Any]], trained: Path
) -> None:
    assert len(records) == ASKED
    digests = {artifact.load(path_of(trained, kind)).name for kind in KINDS}
    for row in records:
        assert row["outcome"] in {"ok", "late"}
        assert digests <= set(row["artifact"].split())
        assert row["predicted_output_tokens_p50"] <= row["predicted_output_tokens_p90"]
        assert 0 < row["predicted_ttft_s_p50"] <= row["predicted_ttft_s_p95"]
        assert 0 < row["predicted_e2e_s_p50"] <= row["predicted_e2e_s_p95"]
    assert all((row["slo_met"] is None) == (row["slo_ttft_s"] is None) for row in records)


def test_latency_is_trained_again_from_the_records(
    folder: Path, records: Sequence[Mapping[str, Any]], trained: Path
) -> None:
    words = ["--from-store", str(folder / "headway.db"), "--config", str(folder / "fleet.yaml")]
    again = folder / "again"
    told = json.loads(headway("train", "latency", *words, "--out", str(again), "--json"))
    assert told["kind"] == "latency"
    assert {each["name"] for each in told["made_of"]["data"]} == {"records"}
    assert (
        artifact.load(path_of(again, "latency")).digest != artifact.load(path_of(trained, "latency")).digest
    )
