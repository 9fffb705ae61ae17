"""Published prompts and answers: what each set's columns mean, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.datasets.public import read_public
from predictors.training.dataset import Answer, DatasetError
from tests.data_files import put
from tests.unit.benchmarks_datasets.published import prompts

QUESTION = " ".join(f"word{i}" for i in range(30))


def answers(folder: Path, name: str) -> dict[tuple[str, str], Answer]:
    found = read_public(folder, [name])
    return {(each.prompt.partition("/")[2], each.model): each for each in found.answers}


def test_zeroeval(tmp_path: Path) -> None:
    folder = tmp_path / "zeroeval"
    prompts(folder, {"p": QUESTION}, task="gsm")
    row = {"prompt_id": "p", "task": "gsm", "correct": 1}
    put(
        folder / "responses.csv.gz",
        [
            row | {"model": "Meta-Llama-3-8B-Instruct", "out_tokens": 72},
            row | {"model": "Qwen2-7B-Instruct", "out_tokens": 4096, "correct": 0},
            row | {"model": "o1-mini-2024-09-12", "out_tokens": 50},
            row | {"model": "yi-large-preview", "out_tokens": 60},
            row | {"model": "Athene-70B", "out_tokens": 0},
            row | {"model": "Meta-Llama-3-8B-Instruct", "out_tokens": 9, "prompt_id": "elsewhere"},
        ],
    )
    put(folder / "models.csv", [{"model": "Athene-70B", "family": "llama-3-tuned"}])
    found = answers(tmp_path, "zeroeval")
    assert found["p", "Meta-Llama-3-8B-Instruct"] == Answer(
        "zeroeval/p", "Meta-Llama-3-8B-Instruct", "llama", 72, False, 1.0, "correct"
    )
    assert found["p", "Qwen2-7B-Instruct"].capped
    assert found["p", "Qwen2-7B-Instruct"].quality == 0.0
    hidden, misjudged, empty = (
        found["p", name] for name in ("o1-mini-2024-09-12", "yi-large-preview", "Athene-70B")
    )
    assert (hidden.output_tokens, hidden.quality) == (None, 1.0)
    assert (misjudged.output_tokens, misjudged.quality, misjudged.quality_kind) == (60, None, None)
    assert (empty.output_tokens, empty.family) == (None, "llama")
    assert len(found) == 5


def test_alpaca_eval_keeps_two_references_apart(tmp_path: Path) -> None:
    folder = tmp_path / "alpaca_eval"
    prompts(folder, {"p": QUESTION}, source="helpful_base")
    columns = ("win_vs_davinci003", "win_vs_gpt4t_weighted", "win_vs_gpt4t_fn", "win_vs_gpt4t_cot")
    rows = [
        ("both", (1, 0.1, "", "")),
        ("weak", (0.9, "", "", "")),
        ("thought", ("", "", "", 0.4)),
        ("none", ("", "", "", "")),
    ]
    put(
        folder / "responses.csv.gz",
        [
            {"prompt_id": "p", "model": model, "out_tokens": 5, **dict(zip(columns, wins, strict=True))}
            for model, wins in rows
        ],
    )
    found = {
        model: (each.quality, each.quality_kind)
        for (_, model), each in answers(tmp_path, "alpaca_eval").items()
    }
    assert found == {
        "both": (0.1, "win"),
        "weak": (0.9, "win_davinci003"),
        "thought": (0.4, "win"),
        "none": (None, None),
    }


def test_arena(tmp_path: Path) -> None:
    folder = tmp_path / "arena_2023"
    prompts(folder, {"p": QUESTION})
    rows = [
        ("Llama-2-70b-chat", 1024, 10),
        ("vicuna-7b-v1.5", 1023, 1),
        ("llama-13b", 9, ""),
        ("claude-2", 9, "5.5"),
    ]
    put(
        folder / "responses.csv.gz",
        [
            {"prompt_id": "p", "model": model, "out_tokens": tokens, "gpt4_score_1_10": score}
            for model, tokens, score in rows
        ],
    )
    found = answers(tmp_path, "arena_2023")
    assert ("p", "llama-13b") not in found
    assert (found["p", "Llama-2-70b-chat"].capped, found["p", "Llama-2-70b-chat"].quality) == (True, 1.0)
    assert (found["p", "vicuna-7b-v1.5"].capped, found["p", "vicuna-7b-v1.5"].quality) == (False, 0.0)
    assert found["p", "claude-2"].quality == pytest.approx(0.5)


def test_sets_without_lengths_and_groups_across_sets(tmp_path: Path) -> None:
    prompts(tmp_path / "llmrouter", {"b": QUESTION, "z": "Something else entirely"}, task="gsm8k")
    put(tmp_path / "llmrouter" / "responses.csv.gz", [{"prompt_id": "b", "model": "m", "score": 0.25}])
    prompts(tmp_path / "routellm", {"a": QUESTION + " A. yes B. no", "b": QUESTION}, task="gsm8k")
    put(
        tmp_path / "routellm" / "responses.csv.gz",
        [
            {"prompt_id": "a", "model": "mixtral-8x7b-instruct", "correct": 1, "out_tokens": ""},
            {"prompt_id": "b", "model": "mixtral-8x7b-instruct", "correct": 0, "out_tokens": 31},
        ],
    )
    data = read_public(tmp_path)
    assert {each.id: each.group for each in data.prompts} == {
        "llmrouter/b": "a", "llmrouter/z": "z", "routellm/a": "a", "routellm/b": "a",
    }  # fmt: skip
    found = [(each.output_tokens, each.quality) for each in data.answers]
    assert found == [(None, 0.25), (None, 1.0), (31, 0.0)]
    assert data.sources == ["llmrouter", "routellm"]
    assert [each["rows"] for each in data.about["sources"]] == [
        {"prompts": 2, "answers": 1}, {"prompts": 2, "answers": 2},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"prompt_id": "p", "model": "m"}], "column score is missing"),
        ([{"prompt_id": "p", "model": "m", "score": 1.5}], "line 2: score: must be at most 1"),
        ([{"prompt_id": "p", "model": "m", "score": "nan"}], "line 2: score: must be a finite number"),
    ],
)
def test_tables_of_another_shape_are_refused(
    tmp_path: Path, rows: list[dict[str, object]], told: str
) -> None:
    prompts(tmp_path / "llmrouter", {"p": QUESTION})
    put(tmp_path / "llmrouter" / "responses.csv.gz", rows)
    with pytest.raises(DatasetError, match=told):
        read_public(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no set 'zero'"):
        read_public(tmp_path, ["zero"])
    with pytest.raises(DatasetError, match="has no folder vllm_burst_llama32_1b"):
        read_public(tmp_path, ["vllm_burst"])
    with pytest.raises(DatasetError, match="has no folder"):
        read_public(tmp_path)
