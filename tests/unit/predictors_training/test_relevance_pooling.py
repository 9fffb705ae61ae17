"""Partial pooling of qualities, where it is known what is luck and what is not."""

import numpy as np
import pytest

from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt
from predictors.training.relevance_labels import Labels, labels_of
from predictors.training.relevance_pooling import pooled_departures


def labels(quality: np.ndarray) -> Labels:
    """Qualities (P, H) of models m0, m1, ...; NaN where there is no answer."""
    prompts = tuple(Prompt(f"p{at}", f"p{at}", "made", prompt_features("")) for at in range(len(quality)))
    answers = tuple(
        Answer(f"p{at}", f"m{model}", quality=float(each), quality_kind="correct")
        for at, row in enumerate(quality)
        for model, each in enumerate(row)
        if not np.isnan(each)
    )
    return labels_of(Dataset(prompts, answers))


def answered(chances: np.ndarray, each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(quality, part) of `each` prompts in every part, right by chance (parts, H)."""
    part = np.repeat(np.arange(len(chances)), each)
    rng = np.random.default_rng(seed)
    return (rng.random((len(part), chances.shape[1])) < chances[part]).astype(float), part


def table(quality: np.ndarray, part: np.ndarray) -> np.ndarray:
    """(parts, H) pooled means."""
    count = int(part.max()) + 1
    prior, departures = pooled_departures(labels(quality), np.arange(len(quality)), part, count)
    return np.asarray(1.0 / (1.0 + np.exp(-(prior + departures))))


def test_luck_in_a_part_is_no_difference_between_models() -> None:
    chances = np.tile([[0.9], [0.5], [0.3], [0.7]], (1, 6))  # parts differ, models do not
    quality, part = answered(chances, 40, seed=1)
    raw = np.stack([quality[part == at].mean(axis=0) for at in range(4)])
    found = table(quality, part)
    assert np.abs(found - chances).mean() < np.abs(raw - chances).mean()
    assert np.ptp(found, axis=1).mean() < 0.75 * np.ptp(raw, axis=1).mean()


def test_a_difference_with_much_evidence_stays() -> None:
    chances = np.array([[0.9, 0.3], [0.3, 0.9], [0.5, 0.5]])
    quality, part = answered(chances, 300, seed=2)
    assert table(quality, part) == pytest.approx(chances, abs=0.08)


def test_a_model_asked_only_hard_prompts_is_not_called_a_bad_one() -> None:
    chances = np.tile([[0.95], [0.2]], (1, 4))
    quality, part = answered(chances, 200, seed=3)
    quality[part == 0, 0] = np.nan
    prior, _ = pooled_departures(labels(quality), np.arange(len(quality)), part, 2)
    assert np.ptp(prior) < 0.25
    assert table(quality, part)[0, 0] == pytest.approx(0.95, abs=0.05)


def test_a_part_that_nobody_answered_has_no_departure() -> None:
    quality, part = answered(np.full((2, 2), 0.5), 30, seed=4)
    _, departures = pooled_departures(labels(quality), np.arange(60), part * 2, 3)
    assert (departures[1] == 0.0).all()
    _, none = pooled_departures(labels(quality), np.arange(30), np.zeros(30, dtype=int), 1)
    assert np.allclose(none, 0.0)
