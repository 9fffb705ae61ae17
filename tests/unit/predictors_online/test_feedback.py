"""Feedback moves a quality, for a model and for its cluster of prompts."""

from __future__ import annotations

import pytest

from predictors.online.qualities import QualityFeedback


def test_without_feedback_nothing_moves() -> None:
    assert QualityFeedback().corrected(0.37, 2) == 0.37


def test_one_judgement_moves_little_and_many_take_over() -> None:
    feedback = QualityFeedback()
    feedback.observe(0.5, 1, 0.0)
    assert 0.4 < feedback.corrected(0.5, 1) < 0.5
    for _ in range(400):
        feedback.observe(0.5, 1, 0.0)
        feedback.observe(0.5, 1, 0.4)
    assert feedback.corrected(0.5, 1) == pytest.approx(0.2, abs=0.05)
    assert feedback.count == 801


def test_clusters_learn_apart() -> None:
    feedback = QualityFeedback()
    for _ in range(300):
        feedback.observe(0.5, 1, 0.9)
        feedback.observe(0.5, 2, 0.1)
    assert feedback.corrected(0.5, 1) > 0.75
    assert feedback.corrected(0.5, 2) < 0.25
    assert feedback.corrected(0.5, 3) == pytest.approx(0.5, abs=0.1)


def test_a_quality_stays_one_at_the_ends() -> None:
    feedback = QualityFeedback()
    for _ in range(2000):
        feedback.observe(1.0, 0, 0.0)
        feedback.observe(0.0, 0, 1.0)
    assert 0.0 < feedback.corrected(0.0, 0) < 1.0
    assert 0.0 < feedback.corrected(1.0, 0) < 1.0
