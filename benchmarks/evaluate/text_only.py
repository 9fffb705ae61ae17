"""How good the text-only estimators are on prompts that they were not trained on (docs/evaluation.md has the figures).

APGR is RouteLLM's (arXiv 2406.18665), of the best and the worst model of a scale. *CPT(x)* is the least share of calls to the
better one that recovers x of the gap between them. *log error* is the mean distance of predicted from actual log length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.evaluate.figures import Curve, Evaluation, Figure, resampled_figure
from benchmarks.evaluate.picks import Rated, check_apart, known_parts, pick_figures
from benchmarks.evaluate.relevance import auc_within_models
from predictors.learned.artifact import Artifact
from predictors.learned.relevance import exact_name
from predictors.learned.text_only import TextModels
from predictors.training.dataset import Dataset
from predictors.training.relevance_labels import labels_of

_LEAST_GROUPS = 5
_RESAMPLES = 300
#: Answers on a scale, and distance of two models' means, below which there is nothing to route.
_LEAST_ROWS = 50
_LEAST_GAP = 0.02


@dataclass(frozen=True)
class Scale(Rated):
    """With the `tokens` of answers (P, M), NaN where there is none, and `estimates` by estimator: (quality, tokens), (P, M)
    each."""

    tokens: np.ndarray
    estimates: dict[str, tuple[np.ndarray, np.ndarray]]


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """All figures on `test`; `train` is what the artifact was trained on, for the best models overall and per task
    (None leaves them out). Raises DatasetError for prompts of `test` that have near copies in `train`, or where the
    artifact knows no model."""
    check_apart(test, train)
    model = TextModels.load(artifact)
    labels = labels_of(test, least_groups=_LEAST_GROUPS)
    tokens = {
        (answer.prompt, exact_name(answer.model)): float(answer.output_tokens)
        for answer in test.answers
        if answer.output_tokens
    }
    scales = [_scale(model, rated, tokens) for rated in known_parts(labels, model.knows)]
    known = None if train is None else labels_of(train)
    figures: list[Figure] = []
    curves: list[Curve] = []
    for scale in scales:
        figures += _accuracy(scale)
        scores = {who: quality for who, (quality, _) in scale.estimates.items() if who != "mean"}
        figures += pick_figures(
            scale, scores, known, minus={}, least=_LEAST_ROWS, resamples=_RESAMPLES, seed=seed
        )
        found, drawn = _deferral(scale, seed)
        figures += found
        curves += drawn
    notes = (
        "Qualities measured differently are never compared: one part a kind of quality and source.",
        "Chosen after looking: the two models of APGR and CPT are those with the best and the worst mean quality on"
        " these data.",
    )
    return Evaluation("text", tuple(figures), tuple(curves), notes)


def _scale(model: TextModels, rated: Rated, tokens: dict[tuple[str, str], float]) -> Scale:
    estimates = {}
    for name, estimator in model.estimators.items():
        found = [estimator(prompt.features, rated.models) for prompt in rated.prompts]
        estimates[name] = (
            np.array([each.quality for each in found], dtype=float),
            np.array([each.output_tokens for each in found], dtype=float),
        )
    known = [[tokens.get((prompt.id, each), np.nan) for each in rated.models] for prompt in rated.prompts]
    return Scale(**vars(rated), tokens=np.array(known), estimates=estimates)


def _accuracy(scale: Scale) -> list[Figure]:
    there, long = ~np.isnan(scale.quality), ~np.isnan(scale.tokens)
    figures = []
    for who, (quality, tokens) in scale.estimates.items():
        within = auc_within_models(scale.quality[there], quality[there], np.nonzero(there)[1])
        if not np.isnan(within):
            figures.append(Figure("AUC within models", who, scale.name, within, rows=int(there.sum())))
        brier = float(np.mean((quality[there] - scale.quality[there]) ** 2))
        figures.append(Figure("Brier score", who, scale.name, brier, rows=int(there.sum())))
        both = long & ~np.isnan(tokens)
        if both.any():
            error = float(np.mean(np.abs(np.log(tokens[both] / scale.tokens[both]))))
            figures.append(Figure("log error", who, scale.name, error, rows=int(both.sum())))
    return figures


# --- two models -----------------------------------------------------------------------------------------
def _deferral(scale: Scale, seed: int) -> tuple[list[Figure], list[Curve]]:
    """Figures of the best and the worst model, by what they did here."""
    means = np.nanmean(scale.quality, axis=0)
    strong, weak = int(means.argmax()), int(means.argmin())
    both = ~np.isnan(scale.quality[:, [strong, weak]]).any(axis=1)
    if both.sum() < _LEAST_ROWS or means[strong] - means[weak] < _LEAST_GAP:
        return [], []
    good, poor = scale.quality[both, strong], scale.quality[both, weak]
    if good.mean() - poor.mean() < _LEAST_GAP:
        return [], []
    groups = scale.groups[both]
    part = f"{scale.name}, {scale.models[strong]} against {scale.models[weak]}"
    figures, curves = [], []
    for who, (predicted, _) in scale.estimates.items():
        if who == "mean":
            continue
        kept = np.clip(predicted[both][:, [strong, weak]], 1e-6, 1.0 - 1e-6)
        win = np.log(kept[:, 0] / (1.0 - kept[:, 0])) - np.log(kept[:, 1] / (1.0 - kept[:, 1]))

        def apgr(rows: np.ndarray, win: np.ndarray = win) -> float:
            return float(np.mean(recovered(win[rows], good[rows], poor[rows])))

        figures.append(resampled_figure("APGR", who, part, groups, apgr, resamples=_RESAMPLES, seed=seed))
        curve = recovered(win, good, poor)
        for wanted in (0.5, 0.8):
            share = float(np.argmax(curve >= wanted)) / (len(curve) - 1)
            figures.append(Figure(f"CPT({wanted:.0%})", who, part, share, rows=len(win)))
        points = np.linspace(0, len(curve) - 1, 41).round().astype(int)
        x, y = points / (len(curve) - 1), curve[points]
        curves.append(
            Curve(f"Gap recovered, {part}", who, "calls to the better model", "share", tuple(x), tuple(y))
        )
    return figures, curves


def recovered(win: np.ndarray, good: np.ndarray, poor: np.ndarray) -> np.ndarray:
    """(P + 1,) share of the gap that is recovered with 0, 1, ... P calls to the better model, likeliest wins
    first."""
    gain = (good - poor)[np.argsort(-win, kind="stable")]
    gap = gain.sum()
    return np.asarray(
        np.concatenate([[0.0], np.cumsum(gain)]) / gap if gap > 0 else np.full(len(gain) + 1, np.nan)
    )
