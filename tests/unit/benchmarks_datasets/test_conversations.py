"""Conversations in the forms of LMSYS-Chat-1M, ShareGPT and the Hugging Face hub."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.datasets import conversations
from benchmarks.datasets.sources import load
from benchmarks.datasets.terms import TERMS
from benchmarks.workloads.sources.prompt_sets import prompt_id
from predictors.training.dataset import Answer, DatasetError
from tests.data_files import put


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def lmsys(number: int, model: str, *turns: dict[str, str]) -> dict[str, Any]:
    """A row as LMSYS publishes it."""
    return {
        "conversation_id": f"c{number}",
        "model": model,
        "conversation": list(turns),
        "turn": len(turns) // 2,
        "language": "English",
        "openai_moderation": [{"flagged": False}],
        "redacted": False,
    }


def test_lmsys_chat_1m(tmp_path: Path) -> None:
    rows = [
        lmsys(1, "vicuna-13b", turn("user", "Why?"), turn("assistant", "x" * 399)),
        lmsys(
            2,
            "llama-2-7b-chat",
            *(
                turn("user", "Why? "),
                turn("assistant", "So."),
                turn("user", "Really?"),
                turn("assistant", "Yes."),
            ),
        ),
        lmsys(3, "vicuna-13b", turn("user", "Why?"), turn("assistant", "Again.")),
        lmsys(4, "vicuna-13b", turn("user", "Nobody answers.")),
    ]
    folder = tmp_path / "lmsys-chat-1m" / "data"
    folder.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows[:2]), folder / "train-00000-of-00002.parquet")
    parquet.write_table(pa.Table.from_pylist(rows[2:]), folder / "train-00001-of-00002.parquet")
    data = load([str(tmp_path / "lmsys-chat-1m")])
    prompt = f"lmsys_chat_1m/{prompt_id('Why?')}"
    assert [(each.id, each.text, each.source) for each in data.prompts] == [(prompt, "Why?", "lmsys_chat_1m")]
    assert data.answers == (
        Answer(prompt, "vicuna-13b", "llama", 100),
        Answer(prompt, "llama-2-7b-chat", "llama", 1),
    )
    (source,) = data.about["sources"]
    assert source["licence"] == TERMS["lmsys_chat_1m"].licence
    assert source["skipped"] == {"rows without a first prompt and its answer": 1}


@pytest.mark.parametrize("name", ["ShareGPT_V3_unfiltered_cleaned_split.json", "s.json.gz"])
def test_sharegpt(tmp_path: Path, name: str) -> None:
    rows = [
        {
            "id": "a_0",
            "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}],
        },
        {"id": "a_1", "conversations": [{"from": "gpt", "value": "In the middle"}]},
        {"id": "b_0", "conversations": []},
        {
            "id": "c_0",
            "conversations": [
                {"from": "system", "value": "Be short."},
                {"from": "human", "value": "Hi there"},
                {"from": "gpt", "value": ""},
            ],
        },
    ]
    data = load([str(put(tmp_path / name, rows))])
    assert data.sources == ["sharegpt"]
    assert data.answers == (Answer(f"sharegpt/{prompt_id('Hi')}", "chatgpt", "gpt", 2),)
    assert data.about["sources"][0]["skipped"] == {"rows without a first prompt and its answer": 3}


@pytest.mark.parametrize(
    ("row", "prompt", "tokens", "model", "quality"),
    [
        (
            {"messages": [turn("system", "s"), turn("user", "Q"), turn("assistant", "A" * 8)]},
            "Q",
            2,
            "chats",
            None,
        ),
        ({"prompt": "Q", "response": "A", "model": "Qwen2-7B", "quality": 0.5}, "Q", 1, "Qwen2-7B", 0.5),
        ({"instruction": "Q", "input": "X", "output": "A"}, "Q\n\nX", 1, "chats", None),
        ({"question": "Q", "answer": "A", "quality": 7}, "Q", 1, "chats", None),
    ],
)
def test_usual_forms_of_the_hub(
    tmp_path: Path, row: dict[str, Any], prompt: str, tokens: int, model: str, quality: float | None
) -> None:
    data = load([str(put(tmp_path / "chats.jsonl.gz", [row]))])
    assert [each.text for each in data.prompts] == [prompt]
    (answer,) = data.answers
    assert (answer.output_tokens, answer.model, answer.quality) == (tokens, model, quality)
    assert answer.quality_kind == (None if quality is None else "score")
    assert data.about["sources"][0]["licence"] is None


@pytest.mark.parametrize("rows", [1, 3])
def test_json_lines_in_a_file_named_json(tmp_path: Path, rows: int) -> None:
    lines = "".join(f'{{"prompt": "Q{n}", "response": "A"}}\n' for n in range(rows))
    data = load([str(put(tmp_path / "chats.json", lines))])
    assert {each.text for each in data.prompts} == {f"Q{n}" for n in range(rows)}


@pytest.mark.parametrize("name", ["zeroeval", "sharegpt"])
def test_the_name_of_a_published_set_is_not_its_licence(tmp_path: Path, name: str) -> None:
    data = load([str(put(tmp_path / f"{name}.jsonl", [{"prompt": "Ours?", "response": "A"}]))])
    assert data.sources == [f"{name}_file"]
    assert data.about["sources"][0]["licence"] is None


def test_of_many_conversations_a_part_is_read_whatever_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MOST", 5)
    rows = [{"prompt": f"Question {n}", "response": "A"} for n in range(20)]
    found = []
    for number, order in enumerate((rows, rows[::-1])):
        path = put(tmp_path / str(number) / "many.jsonl", order)
        found.append({each.id for each in load([str(path)]).prompts})
    assert len(found[0]) == 5
    assert found[0] == found[1]


_ROW = b'{"prompt": "Q", "response": "A"}\n'


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl", b'{"other": 1}\n', "has no conversation in a known form"),
        ("a.json", b"[1, {}]", "has no conversation in a known form"),
        ("a.json", b"[", "not valid JSON"),
        ("a.json", b'{"prompt": "Q", "response": "A"}\n{"prompt"', "line 2: not valid JSON"),
        ("a.json", b'{"prompt":\n"Q"', "a.json: not valid JSON"),
        ("a.json.gz", b"\x1f\x8bno", "a.json.gz: not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(_ROW * 99, mtime=0)[:-9], "a.jsonl.gz: not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(_ROW, mtime=0)[:10] + b"\xff" * 20, "a.jsonl.gz: not a whole gzip file"),
        ("a.json.gz", gzip.compress(_ROW, mtime=0)[:10] + b"\xff" * 20, "a.json.gz: not a whole gzip file"),
        ("a.jsonl", _ROW + b'{"prompt": "caf\xe9"}\n' + _ROW, "a.jsonl, line 2: not UTF-8 text"),
        ("a.json", b'["\xe9"]', "a.json: not UTF-8 text"),
        ("a.jsonl", b"no\n", "line 1: not valid JSON"),
        ("a.parquet", b"no", "cannot be read as Parquet"),
    ],
)
def test_what_is_no_conversation(tmp_path: Path, name: str, content: bytes, error: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=error) as raised:
        load([str(tmp_path / name)])
    assert "\n" not in str(raised.value)


def test_qualities_on_another_scale_are_left_out(tmp_path: Path) -> None:
    """Of grades from 1 to 5, the worst would be read as the best quality."""
    rows = [
        {"prompt": f"Q{n}", "answer": "A", "quality": grade} for n, grade in enumerate((1, 5, 0.5, None, 4))
    ]
    data = load([str(put(tmp_path / "graded.jsonl", rows))])
    assert len(data.answers) == 5
    assert {(each.quality, each.quality_kind) for each in data.answers} == {(None, None)}
    (source,) = data.about["sources"]
    assert source["skipped"] == {"all qualities, because of so many that are not from 0 to 1": 2}
