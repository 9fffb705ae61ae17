"""Agreement of a judge with stored grades."""

from __future__ import annotations

import math
from functools import partial

import pytest

from benchmarks.evaluate.figures import resampled_figure
from benchmarks.judging import agreement
from benchmarks.judging.agreement import pair_agreement, score_agreement
from benchmarks.judging.answers import Answered, pairs

GRADES = {"a": 0.1, "b": 0.5, "c": 0.9}
ANSWERS = [Answered(prompt, prompt, model, "", grade) for prompt in "pqrs" for model, grade in GRADES.items()]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four prompts, fifty show the interval as well as a thousand."""
    monkeypatch.setattr(agreement, "resampled_figure", partial(resampled_figure, resamples=50))


def test_scores_in_the_order_of_the_grades() -> None:
    found = {each.key: (each.grade or 0.0) / 2 for each in ANSWERS}
    correlation, difference, auc = score_agreement(ANSWERS, found)
    assert (auc.value, auc.low, auc.high) == (1.0, 1.0, 1.0)
    assert (correlation.value, correlation.low, correlation.high) == pytest.approx((1.0, 1.0, 1.0))
    assert difference.value == pytest.approx(0.25)
    assert correlation.rows == 12


def test_scores_in_the_opposite_order() -> None:
    found = {each.key: 1 - (each.grade or 0.0) for each in ANSWERS}
    correlation, _, auc = score_agreement(ANSWERS, found)
    assert (correlation.value, auc.value) == (pytest.approx(-1.0), 0.0)


def test_the_auc_is_the_share_of_good_and_poor_answers_that_are_told_apart() -> None:
    """`b`, graded one half, is neither. Of p's two the judge says the same, of the others it is right."""
    found = {each.key: 0.5 if each.prompt_id == "p" else each.grade or 0.0 for each in ANSWERS}
    *_, auc = score_agreement(ANSWERS, found)
    assert auc.value == pytest.approx((9 + 3 + 3 + 0.5) / 16)
    assert auc.rows == 8
    undecided = [Answered("p", "p", name, "", 0.5) for name in "ab"]
    assert len(score_agreement(undecided, {each.key: 1.0 for each in undecided})) == 2


def test_a_judge_that_says_the_same_of_all_correlates_with_nothing() -> None:
    correlation, difference, auc = score_agreement(ANSWERS, {each.key: 0.5 for each in ANSWERS})
    assert math.isnan(correlation.value)
    assert auc.value == 0.5
    assert difference.value == pytest.approx((0.4 + 0.0 + 0.4) / 3)


def test_what_has_no_grade_or_no_verdict_is_left_out() -> None:
    ungraded = Answered("p", "p", "d", "")
    assert score_agreement([ungraded, *ANSWERS], {ungraded.key: 1.0}) == []
    (share,) = pair_agreement(pairs([ungraded, *ANSWERS]), {("p", "d", "a"): 1.0, ("p", "a", "b"): 0.0})
    assert (share.value, share.rows) == (1.0, 1)


def test_a_tie_counts_half_and_equal_grades_not() -> None:
    answers = [*ANSWERS, Answered("p", "p", "e", "", 0.1)]
    found = {("p", "a", "b"): 0.5, ("p", "b", "c"): 0.0, ("q", "a", "c"): 1.0, ("p", "a", "e"): 1.0}
    (share,) = pair_agreement(pairs(answers), found)
    assert (share.value, share.rows) == (pytest.approx(0.5), 3)
