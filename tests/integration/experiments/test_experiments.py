"""`headway experiment` from the command line: small runs with what comes with Headway, on small data sets of the published
form, and against an engine on a socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.compare import pool
from benchmarks.experiments import answer_lengths, goodput, heterogeneity, latency_fits, real_engine, training
from benchmarks.experiments.report import Section
from benchmarks.workloads.format import WorkloadError
from predictors.training.latency_fit import Settings
from router.cli import main
from tests.commands import Headway
from tests.data_files import put
from tests.integration.collect.conftest import Engines, engines
from tests.unit.benchmarks.parsed import assert_stands_alone

__all__ = ["engines"]

SMALL = ["--repeats", "6", "--requests", "30", "--replays", "2", "--worlds", "2"]
PROMPTS = [f"{at:016x}" for at in range(60)]


@pytest.fixture(autouse=True)
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_DATA", raising=False)


def result(folder: Path) -> dict[str, Any]:
    """What was found; all that it names must be there."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    figures = {figure["file"] for section in found["sections"] for figure in section["figures"]}
    assert figures == {f"figures/{path.name}" for path in (folder / "figures").iterdir()}
    assert_stands_alone((folder / "index.html").read_text(encoding="utf-8"))
    assert (folder / "tables.md").read_text(encoding="utf-8").startswith(f"# {found['title']}")
    return found


def tables(found: dict[str, Any], title: str) -> list[list[list[Any]]]:
    """The rows of the tables of a section whose title begins so."""
    (section,) = [each for each in found["sections"] if each["title"].startswith(title)]
    return [table["rows"] for table in section["tables"]]


@pytest.mark.timeout(400)
def test_unpredictability_of_emulated_instances(tmp_path: Path) -> None:
    assert main(["experiment", "unpredictability", "--out", str(tmp_path), "--seed", "3", *SMALL]) == 0
    found = result(tmp_path)
    assert (found["seed"], found["data"]) == (3, "what comes with Headway")
    by_instance, shares = tables(found, "The same request")
    assert len(by_instance) == 6 * 3
    assert all(between + within == pytest.approx(1) for _, between, within in shares)
    (equal,) = tables(found, "Requests of equal length")
    e2e = [row for row in equal if row[0] == "E2E"]
    assert all(of_both > of_input for _, _, of_input, of_both, *_ in e2e)
    arms, requests = tables(found, "A workload replayed")
    variations = {(arm, measure): variation for arm, measure, _, _, variation in arms}
    assert variations["order", "output tokens"] == 0
    assert variations["answer lengths", "output tokens"] > 0
    assert variations["order", "TTFT (s)"] > 0
    assert len(requests) == 24
    (explained,) = tables(found, "What predictors explain")
    assert {row[2] for row in explained} >= {"physical estimate", "LSTM", "boosted trees", "memory model"}
    assert {row[1] for row in explained} == {"emulated"}


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`headway experiment heterogeneity` without any data."""
    folder = tmp_path_factory.mktemp("heterogeneity")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("HEADWAY_DATA", raising=False)
        assert main(["experiment", "heterogeneity", "--requests", "40", "--out", str(folder)]) == 0
    return result(folder)


@pytest.mark.timeout(400)
def test_heterogeneity_without_data(unlike: dict[str, Any]) -> None:
    found = unlike["sections"]
    assert [section["title"].partition(":")[0] for section in found] == [
        *("Hardware", "Hardware", "Software", "SLO classes", "Model size and quantisation", "Prices")
    ]
    formats = next(each for each in found if "lacks" in each["title"])["tables"][0]
    v100 = formats["columns"].index("v100-32g")
    assert {row[0] for row in formats["rows"] if row[v100] == "no"} == {"bf16", "fp8", "int4"}


@pytest.mark.timeout(400)
def test_a_real_engine_is_asked_over_http(
    tmp_path: Path, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engines.vllm("one", speed=20.0)
    words = f"--url {engine.url} --model up/llama-3.1-8b --repeats 3 --requests 6 --replays 2"
    assert main(["experiment", "unpredictability", "--out", str(tmp_path), *words.split()]) == 0
    found = result(tmp_path)
    assert found["url"] == engine.url
    assert re.match(r"one answer takes \S+ s; the rest takes at least 1 min", capsys.readouterr().err)
    (arms,) = tables(found, "The same request")
    assert [row[2] for row in arms] == [3] * len(arms)
    assert {row[1] for row in arms} == {"TTFT", "TPOT", "E2E", "output tokens"}
    _, requests = tables(found, "A workload replayed")
    assert len(requests) == 6


@pytest.mark.parametrize(
    ("words", "counts"), [([], (12, 24, 4)), (["--requests", "300", "--replays", "12"], (12, 300, 12))]
)
def test_a_real_engine_is_asked_less_by_default(
    words: list[str], counts: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(real_engine, "sections", lambda _, *counted: asked.append(counted[:3]) or [])
    known = ["--url", "http://127.0.0.1:9", "--model", "m", "--out", str(tmp_path)]
    assert main(["experiment", "unpredictability", *known, *words]) == 0
    assert asked == [counts]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["unpredictability", "--url", "http://127.0.0.1:9"], "--url needs --model"),
        (["unpredictability", "--model", "m"], "--model needs --url"),
        (["unpredictability", "--url", "ftp://x", "--model", "m"], "expected http://"),
        (
            ["unpredictability", "--url", "http://127.0.0.1:9", "--model", "m", "--repeats", "2"],
            "no answer to same-0",
        ),
        (["unpredictability", "--replays", "1"], "--replays: must be at least 2"),
        (["heterogeneity", "--data", "not-there"], "no such folder"),
        (["training", "--draws", "1"], "--draws: must be at least 2"),
    ],
)
def test_bad_input_is_one_line(words: Sequence[str], reason: str, tmp_path: Path, headway: Headway) -> None:
    assert reason in headway.refusal("experiment", *words, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("stop", "status", "stopped"),
    [(WorkloadError("no answer"), 2, "no answer"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["an engine that dies", "Ctrl-C"],
)
def test_what_is_done_is_kept(
    stop: BaseException, status: int, stopped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sections(*_: object) -> Iterator[Section]:
        yield Section("First", ["One."])
        raise stop

    monkeypatch.setattr(heterogeneity, "sections", sections)
    out = tmp_path / "out"
    assert main(["experiment", "heterogeneity", "--out", str(out)]) == status
    found = json.loads((out / "results.json").read_bytes())
    assert [each["title"] for each in found["sections"]] == ["First"]
    assert found["stopped"] == stopped


def test_a_folder_that_cannot_be_written_costs_no_time(
    tmp_path: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heterogeneity, "sections", lambda *_: pytest.fail("it began"))
    (tmp_path / "file").touch()
    assert "cannot write" in headway.refusal(
        "experiment", "heterogeneity", "--out", tmp_path / "file" / "out"
    )


# --- on data of the published form --------------------------------------------------------------------
HOSTS = answer_lengths.HOSTS["llama-3.1-405b"]
#: By model: billions of parameters, and its mean answer.
MODELS = {
    HOSTS["sambanova"]: (405, 200),
    HOSTS["hyperbolic"]: (405, 200),
    "Meta-Llama-3.1-8B-Instruct": (8, 400),
    "Meta-Llama-3.1-70B-Instruct": (70, 100),
    "Qwen2-7B-Instruct": (7, 150),
}


def table(path: Path, columns: str, rows: Sequence[Sequence[Any]]) -> None:
    put(path, [dict(zip(columns.split(","), row, strict=True)) for row in rows])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    rng = np.random.default_rng(1)
    lengths = {prompt: float(np.exp(rng.normal(scale=0.5))) for prompt in PROMPTS}
    answers = [
        (
            prompt,
            "gsm",
            model,
            round(mean * lengths[prompt] * np.exp(rng.normal(scale=0.2))) + 1,
            9,
            900,
            at % 2,
        )
        for model, (_, mean) in MODELS.items()
        for at, prompt in enumerate(PROMPTS)
    ]
    table(
        folder / "zeroeval" / "responses.csv.gz",
        "prompt_id,task,model,out_tokens,out_tokens_cl100k,out_chars,correct",
        answers,
    )
    table(
        folder / "zeroeval" / "models.csv",
        "model,family,params_b,tokenizer,tokenizer_kind,engine",
        [(model, "llama", size, "llama3", "native", "vllm") for model, (size, _) in MODELS.items()],
    )
    prompts = []
    for at, prompt in enumerate(PROMPTS):
        question = f"Question {at}: " + " ".join(map(str, rng.integers(0, 10_000, 30)))
        row = {"prompt_id": prompt, "prompt": question, "task": "gsm", "prompt_tokens_cl100k": 200}
        prompts.append(row)
    put(folder / "zeroeval" / "prompts.jsonl.gz", prompts)
    table(
        folder / "prices" / "litellm_prices.csv",
        "model,provider,mode,input_usd_per_m,output_usd_per_m",
        [
            ("x/Meta-Llama-3.1-8B-Instruct", "x", "chat", 0.1, 0.3),
            ("x/Meta-Llama-3.1-70B-Instruct", "x", "chat", 0.1, 0.4),
            ("x/Qwen2-7B-Instruct", "x", "embedding", 0.1, 0.1),
        ],
    )
    table(
        folder / "vllm_throughput_a100_tesla.csv",
        "model,nr_gpus,batch_size,throughput_a100,throughput_tesla,status_a100,status_tesla",
        [("m", 1, batch, 20.0 * batch, 10.0 * batch, "ok", "ok") for batch in (1, 8)],
    )
    table(
        folder / "aibrix_vllm_llama31_8b" / "requests.csv.gz",
        "release,config,qps,launch_s,prompt_tokens,generation_tokens,ttft_s,generation_s,user_id",
        [("v1", "naive", qps, at, 1000, 10, qps, 1.0, "u") for qps in (0.5, 1.5) for at in range(9)],
    )
    return folder


@pytest.mark.timeout(400)
def test_published_sets_add_sections(data: Path, tmp_path: Path, unlike: dict[str, Any]) -> None:
    out = tmp_path / "out"
    words = ["--data", str(data), "--requests", "40", "--out", str(out)]
    assert main(["experiment", "heterogeneity", *words]) == 0
    found = result(out)
    # The same seed gives the same; data only add to it.
    assert [each for each in found["sections"] if each in unlike["sections"]] == unlike["sections"]
    assert len(found["sections"]) == 10
    (ratios,) = tables(found, "Hardware, measured")
    assert [row[:4] for row in ratios] == [[1, 1, 1, 2.0], [1, 8, 1, 2.0]]
    (releases,) = tables(found, "Software, measured")
    assert releases == [["v1", "naive", 0.5, 9, 0.5, 0.5], ["v1", "naive", 1.5, 9, 1.5, 1.5]]
    (models,) = tables(found, "Model size, measured")
    assert {row[0]: row[3] for row in models} == dict.fromkeys(MODELS, 50.0)
    offers, lower_prices, talking = tables(found, "Prices, measured")
    assert {row[0] for row in offers} == {"Meta-Llama-3.1-8B-Instruct (x)", "Meta-Llama-3.1-70B-Instruct (x)"}
    by_offer = {row[0]: row for row in offers}
    _, input_usd, output_usd, tokens, usd = by_offer["Meta-Llama-3.1-8B-Instruct (x)"]
    assert usd == pytest.approx(1000 * (200 * input_usd + tokens * output_usd) / 1e6)
    assert lower_prices == talking
    assert talking[0][0] == "Meta-Llama-3.1-8B-Instruct (x)"


def test_the_noise_of_answers_is_that_of_two_hosts(data: Path) -> None:
    section, noise = answer_lengths.section(data)
    pairs, shares = section.tables
    ((model, task, hosts, prompts, *_),) = pairs.rows
    assert (model, task, hosts, prompts) == ("llama-3.1-405b", "gsm", "sambanova / hyperbolic", 60)
    assert noise.std() == pytest.approx(0.2, abs=0.04)
    ((_, *found),) = shares.rows
    assert sum(found) == pytest.approx(1)
    of_model, of_prompt, _, of_noise = found
    # Models differ by ln 4 at most, prompts by 0.5, answers by 0.2.
    assert of_prompt == pytest.approx(
        0.25 / (0.25 + 0.04 + np.log([200, 400, 100, 150]).var(ddof=1)), abs=0.15
    )
    assert of_noise < of_prompt
    assert of_model > 0.3


# --- training -----------------------------------------------------------------------------------------
@pytest.mark.timeout(400)
def test_training_on_emulated_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_fits, "Settings", partial(Settings, epochs=1, head_epochs=1))
    monkeypatch.setattr(latency_fits, "_TREES", 2)
    monkeypatch.setattr(goodput, "POLICIES", ("slo",))
    monkeypatch.setattr(training, "LATENCY_CASES", training.LATENCY_CASES[:1])
    monkeypatch.setattr(training, "LENGTH_CASES", training.LENGTH_CASES[:1])
    monkeypatch.setattr(pool, "cores", lambda: 1)
    words = ["--worlds", "2", "--draws", "2", "--requests", "30"]
    assert main(["experiment", "training", "--out", str(tmp_path), *words]) == 0
    found = result(tmp_path)
    (families,) = tables(found, "Latency: Llama and Qwen")
    assert {(row[0], row[1]) for row in families} >= {("llama", "qwen"), ("qwen", "llama"), ("llama", "all")}
    (unseen,) = tables(found, "Latency: what was never seen")
    assert [row[1] for row in unseen if row[2] == "LSTM"] == [
        *("the same instances, earlier", "other instances", "other models", "other GPUs")
    ]
    for title in ("Goodput: parts", "Goodput: features", "Goodput: lengths"):
        (rows,) = tables(found, title)
        assert all(0 <= row[5] <= 100 and row[6] > 0 for row in rows)
