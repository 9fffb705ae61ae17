"""Files of prompts in their three forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.collect.prompts import read_questions
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, write
from benchmarks.workloads.text import prompt_text


def file(folder: Path, text: str) -> Path:
    path = folder / "prompts"
    path.write_text(text, encoding="utf-8")
    return path


def test_plain_lines(tmp_path: Path) -> None:
    read, _ = read_questions(file(tmp_path, "  Why is the sky blue?\n\n12\nÄpfel?\n"))
    assert [each.prompt for each in read] == ["Why is the sky blue?", "12", "Äpfel?"]
    assert len({each.id for each in read}) == 3


def test_json_lines_with_what_is_known(tmp_path: Path) -> None:
    lines = (
        '{"prompt": "a", "max_tokens": 5, "output_tokens": {"m": 3}, "session": "s", "task": "t"}\n'
        '{"prompt": "b\\nc", "output_tokens": 7, "other": 1}\n'
    )
    (first, second), _ = read_questions(file(tmp_path, lines))
    assert (first.max_tokens, first.output_tokens, first.session, first.task) == (5, {"m": 3}, "s", "t")
    assert (second.prompt, second.max_tokens, second.output_tokens) == ("b\nc", None, 7)


def test_a_workload(tmp_path: Path) -> None:
    requests = [
        WorkloadRequest("x", 0.0, 40, max_tokens=9, session="s"),
        WorkloadRequest("y", 1.0, 2, prompt="12345678"),
    ]
    path = tmp_path / "w.jsonl"
    write(path, Header("made", licence="CC0", seed=4), requests)
    read, licence = read_questions(path)
    assert licence == "CC0"
    assert [each.prompt for each in read] == [prompt_text(requests[0], 4), "12345678"]
    assert (read[0].max_tokens, read[0].session) == (9, "s")


def test_equal_texts_are_one_prompt_and_the_first_counts(tmp_path: Path) -> None:
    lines = '{"prompt": "a", "task": "1"}\n{"prompt": "b"}\n{"prompt": "a", "task": "2"}\n'
    read, _ = read_questions(file(tmp_path, lines))
    assert [(each.prompt, each.task) for each in read] == [("a", "1"), ("b", None)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no prompt"),
        ("\n \n", "no prompt"),
        ('{"prompt": "a"}\nplain\n', "line 2"),
        ('{"prompt": "a"}\n{"text": "a"}\n', "line 2"),
        ('{"prompt": 3}\n', "line 1"),
        ('{"prompt": "a"\n{"prompt": "b"}\n', "line 1"),
        ('{"prompt": "a", "max_tokens": 0}\n', "max_tokens"),
        ('{"prompt": "a", "output_tokens": {"m": "many"}}\n', "output_tokens.m: must be"),
        ('{"prompt": "a", "session": 3}\n', "session"),
        ('{"headway_workload": 1, "source": "s"}\n', "no prompt"),
        ('{"headway_workload": 9, "source": "s"}\n', "version"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(WorkloadError, match=reason) as told:
        read_questions(file(tmp_path, text))
    assert "\n" not in str(told.value)


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    for text in ('\ufeff{"prompt": "a"}\n{"prompt": "b"}\n', "\ufeffa\nb\n"):
        assert [each.prompt for each in read_questions(file(tmp_path, text))[0]] == ["a", "b"]


def test_a_file_that_is_called_json_lines_is_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"\n"b"\n')
    with pytest.raises(WorkloadError, match="line 1"):
        read_questions(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot read"):
        read_questions(tmp_path / "none")
    path = tmp_path / "latin"
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(WorkloadError, match="UTF-8"):
        read_questions(path)
