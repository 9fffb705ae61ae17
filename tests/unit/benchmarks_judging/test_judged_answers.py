"""Answers to judge, in all forms in which they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.judging.answers import Answered, pairs, read_answers
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.sources.prompt_sets import prompt_id
from tests.data_files import put
from tests.unit.benchmarks_datasets.published import prompts


def test_json_lines_with_models_and_a_limit(tmp_path: Path) -> None:
    rows = [
        {"prompt": "One?", "answer": "1", "model": "a", "quality": 0.5},
        {"prompt": "One?", "answer": "I", "model": "b", "more": True},
        {"prompt": "Two?", "answer": "2", "model": "a"},
        {"prompt": "Two?", "answer": "II", "model": "c"},
    ]
    path = put(tmp_path / "answers.jsonl", rows)
    one, two = prompt_id("One?"), prompt_id("Two?")
    assert read_answers(path, ["a", "b"]) == [
        Answered(one, "One?", "a", "1", 0.5),
        Answered(one, "One?", "b", "I"),
        Answered(two, "Two?", "a", "2"),
    ]
    assert [each.key for each in read_answers(path, limit=1)] == [(one, "a"), (one, "b")]
    assert list(pairs(read_answers(path))) == [(one, "a", "b"), (two, "a", "c")]


def test_fastchat_s_files(tmp_path: Path) -> None:
    put(tmp_path / "question.jsonl", [{"question_id": "q", "turns": ["Why?"]}])
    answer = {"question_id": "q", "model_id": "m", "choices": [{"turns": ["So."]}]}
    put(tmp_path / "model_answer" / "m.jsonl", [answer, answer | {"question_id": "elsewhere"}])
    put(tmp_path / "model_judgment" / "m.jsonl", [{"question_id": "q", "model": "m", "score": 10}])
    assert read_answers(tmp_path) == [Answered("q", "Why?", "m", "So.", 1.0)]


def test_a_published_set_with_texts_and_without(tmp_path: Path) -> None:
    folder = tmp_path / "arena_2023"
    prompts(folder, {"p": "Why?"})
    row = {"prompt_id": "p", "model": "m", "collection": "bench", "out_tokens": 2, "gpt4_score_1_10": 5.5}
    put(folder / "responses.csv.gz", [row])
    with pytest.raises(WorkloadError, match=r"has no texts of answers \(response_text.jsonl.gz\)"):
        read_answers(folder)
    put(folder / "response_text.jsonl.gz", [{"prompt_id": "p", "model": "m", "response": "So."}])
    assert read_answers(folder) == [Answered("arena_2023/p", "Why?", "m", "So.", 0.5)]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([{"prompt": "One?"}], "line 1: answer: is missing"),
        ([{"prompt": "One?", "answer": "1", "quality": 2}], "line 1: quality: "),
        ([{"prompt": "One?", "answer": "1"}] * 2, ", line 2: a second answer of model '' to its prompt"),
        ([], "there is no answer in it"),
    ],
)
def test_what_cannot_be_judged(tmp_path: Path, rows: list[dict[str, Any]], error: str) -> None:
    path = put(tmp_path / "answers.jsonl", rows)
    with pytest.raises(WorkloadError) as raised:
        read_answers(path)
    assert error in str(raised.value)


def test_another_folder(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"neither question.jsonl nor a published set"):
        read_answers(tmp_path)
