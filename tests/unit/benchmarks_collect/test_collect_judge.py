"""The judge's question, and what counts as a verdict."""

from __future__ import annotations

import pytest

from benchmarks.collect.judge import RUBRIC, quality_of, question


@pytest.mark.parametrize(
    ("verdict", "quality"),
    [
        ("<feedback>Fine.</feedback>\n<score>\n5\n</score>", 1.0),
        ("<feedback>Poor.</feedback><score>1</score>", 0.0),
        ("<feedback>It says <score>1</score> itself.</feedback><score>3</score>", 0.5),
        ("<score>6</score>", None),
        ("<score>4.5</score>", None),
        ("Score: 4", None),
        ("", None),
    ],
)
def test_a_verdict_s_score(verdict: str, quality: float | None) -> None:
    assert quality_of(verdict) == quality


def test_the_question_has_both_texts_as_they_are_and_the_rubric() -> None:
    told = question("What is {prompt}?", "It is {answer}, {rubric}.")
    assert "<inputs>\nWhat is {prompt}?\n</inputs>" in told
    assert "<output>\nIt is {answer}, {rubric}.\n</output>" in told
    assert [line for line in told.splitlines() if line.startswith("- Score ")] == [
        f"- Score {score}: {text}" for score, text in enumerate(RUBRIC, start=1)
    ]
