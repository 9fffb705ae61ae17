"""The judge's questions, and what counts as a verdict."""

from __future__ import annotations

import pytest

from router.judging import FORM_TOKENS, RUBRIC, pair_question, preference_of, quality_of, question


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


@pytest.mark.parametrize(
    ("verdict", "preference"),
    [
        ("<feedback>A is wrong.</feedback>\n<better>\nB\n</better>", 0.0),
        ("<better>a</better>", 1.0),
        ("<better>Tie</better>", 0.5),
        ("<feedback>Not <better>A</better>.</feedback><better>B</better>", 0.0),
        ("<better>C</better>", None),
        ("A", None),
    ],
)
def test_a_verdict_s_preference(verdict: str, preference: float | None) -> None:
    assert preference_of(verdict) == preference


def test_the_question_has_both_texts_as_they_are_and_the_rubric() -> None:
    told = question("What is {prompt}?", "It is {answer}, {rubric}.")
    assert "<inputs>\n<query>\nWhat is {prompt}?\n</query>\n</inputs>" in told
    assert "<output>\n<response>\nIt is {answer}, {rubric}.\n</response>\n</output>" in told
    assert [line for line in told.splitlines() if line.startswith("- Score ")] == [
        f"- Score {score}: {text}" for score, text in enumerate(RUBRIC, start=1)
    ]


def test_the_question_has_the_parts_and_steps_of_flow_judge_s() -> None:
    """`prompt_formatter.py` of flowaicom/flow-judge."""
    told = question("One?", "One.").splitlines()
    assert [line for line in told if line.startswith("#")] == [
        "# GOAL",
        "# INPUT",
        "# OUTPUT",
        "# EVALUATION CRITERIA AND SCORING RUBRIC",
        "# INSTRUCTIONS FOR THE EVALUATION",
        "## FORMAT FOR THE EVALUATION",
    ]
    assert [line[:3] for line in told if line[:1].isdigit()] == [f"{step}. " for step in range(1, 7)]


def test_a_check_is_priced_with_the_tokens_of_the_form() -> None:
    assert pytest.approx(len(question("", "")) / 4, rel=0.05) == FORM_TOKENS  # as the gateway estimates


def test_the_question_about_two_has_them_in_order() -> None:
    told = pair_question("{prompt}", "one {first}", "two")
    assert "<inputs>\n<query>\n{prompt}\n</query>\n</inputs>" in told
    assert "<output_a>\none {first}\n</output_a>\n<output_b>\ntwo\n</output_b>" in told
