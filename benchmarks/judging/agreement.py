"""How far a judge's verdicts agree with stored grades, with 95 % intervals over whole prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import rankdata

from benchmarks.evaluate.figures import WHOLE, Figure, resampled_figure, soft_auc
from benchmarks.judging.answers import Answered, AnswerKey, PairKey


def score_agreement(answers: Sequence[Answered], found: Mapping[AnswerKey, float]) -> list[Figure]:
    """Of scores: rank correlation, mean absolute difference, and the AUC: the probability that the judge gives an answer whose
    grade is above one half a greater score than one whose grade is below (equal scores count as one half). Empty without graded
    answers that were judged."""
    rows = [
        (each.prompt_id, found[each.key], each.grade)
        for each in answers
        if each.grade is not None and each.key in found
    ]
    if not rows:
        return []
    prompts = [prompt for prompt, _, _ in rows]
    judged, stored = np.array([[ours, theirs] for _, ours, theirs in rows]).T

    def correlation(at: np.ndarray) -> float:
        ours, theirs = rankdata(judged[at]), rankdata(stored[at])
        if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
            return float("nan")
        return float(np.corrcoef(ours, theirs)[0, 1])

    def difference(at: np.ndarray) -> float:
        return float(np.abs(judged[at] - stored[at]).mean())

    sides = np.flatnonzero(stored != 0.5)

    def auc(at: np.ndarray) -> float:
        return soft_auc((stored[sides[at]] > 0.5).astype(float), judged[sides[at]])

    figures = [
        resampled_figure("Spearman", "judge", WHOLE, prompts, correlation),
        resampled_figure("mean absolute difference", "judge", WHOLE, prompts, difference),
    ]
    if len(sides):
        figures.append(resampled_figure("AUC", "judge", WHOLE, [prompts[at] for at in sides], auc))
    return figures


def pair_agreement(
    pairs: Mapping[PairKey, tuple[Answered, Answered]], found: Mapping[PairKey, float]
) -> list[Figure]:
    """Of preferences: the share of pairs with different grades in which the judge prefers the better graded answer. A tie
    counts as one half."""
    rows = [
        (key[0], found[key] if first.grade > second.grade else 1.0 - found[key])
        for key, (first, second) in pairs.items()
        if key in found
        and first.grade is not None
        and second.grade is not None
        and first.grade != second.grade
    ]
    if not rows:
        return []
    agreed = np.array([each for _, each in rows])
    prompts = [prompt for prompt, _ in rows]
    return [
        resampled_figure("share that agrees", "judge", WHOLE, prompts, lambda at: float(agreed[at].mean()))
    ]
