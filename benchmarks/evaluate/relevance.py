"""How good the relevance predictor is on prompts that it was not trained on, beside TF-IDF + logistic regression
(docs/evaluation.md has the figures).

AUC has soft labels: an answer of quality q counts as q of a good one and 1 - q of a bad one. "within models" is the mean over
models of each one's own AUC: what is left when knowing which model is the better one does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from benchmarks.evaluate.figures import (
    Curve,
    Evaluation,
    Figure,
    Ranked,
    equal_bins,
    resampled_figure,
    soft_auc,
)
from benchmarks.evaluate.picks import (
    BEST_PER_TASK,
    BEST_SINGLE,
    Rated,
    check_apart,
    known_parts,
    pick_figures,
)
from benchmarks.evaluate.relevance_baseline import BASELINE, fitted_baseline
from benchmarks.workloads.published import grouped
from predictors.learned.artifact import Artifact
from predictors.learned.relevance import RelevanceModel
from predictors.training.dataset import Dataset
from predictors.training.relevance_labels import Labels, labels_of

OURS = "relevance"
DIFFERENCE = f"{OURS} - {BASELINE}"
_LEAST_GROUPS = 5
#: Rows that a task must have to be a point of a curve.
_LEAST_OF_TASK = 30
_RESAMPLES = 500


@dataclass(frozen=True)
class Judged(Rated):
    """With predictions, (P, M)."""

    predicted: np.ndarray
    baseline: np.ndarray | None

    @property
    def source(self) -> str:
        return self.name.rsplit("/", 1)[0]


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """All figures on `test`; `train` (what the artifact was trained on) is what baselines are fitted on, None
    for none. Raises DatasetError for prompts of `test` that have near copies in `train`, or without quality."""
    check_apart(test, train)
    labels = labels_of(test, least_groups=_LEAST_GROUPS)
    known = None if train is None else labels_of(train)
    model = RelevanceModel.load(artifact)
    judged = [_judge(model, rated, known, seed) for rated in known_parts(labels, model.knows)]
    figures: list[Figure] = []
    for part, members in [("all", judged), *sorted(grouped(judged, attrgetter("source")).items())]:
        figures += _accuracy(part, members, seed)
    minus = {OURS: (BEST_SINGLE, BEST_PER_TASK)}
    for each in judged:
        scores = {OURS: each.predicted} | ({} if each.baseline is None else {BASELINE: each.baseline})
        figures += pick_figures(each, scores, known, minus=minus, least=1, resamples=_RESAMPLES, seed=seed)
    return Evaluation("relevance", tuple(figures), tuple(_curves(judged)), tuple(_notes(labels, judged)))


def _judge(model: RelevanceModel, rated: Rated, train: Labels | None, seed: int) -> Judged:
    predicted = np.stack([model.quality(prompt.features, rated.models)[0] for prompt in rated.prompts])
    baseline = fitted_baseline(train, rated.name, rated.models, rated.prompts, seed) if train else None
    return Judged(**vars(rated), predicted=predicted, baseline=baseline)


# --- accuracy -------------------------------------------------------------------------------------------
def expected_calibration_error(quality: np.ndarray, predicted: np.ndarray) -> float:
    """Mean distance of predicted from actual means over ten bins of equal size, in units of quality."""
    bins = equal_bins(predicted)
    gaps = [abs(quality[each].mean() - predicted[each].mean()) * len(each) for each in bins]
    return float(np.sum(gaps) / len(quality))


def _accuracy(part: str, judged: list[Judged], seed: int) -> list[Figure]:
    quality = _flat(judged, lambda each: each.quality)
    blocks = _flat(judged, lambda each: each.groups[:, None])
    of_model = _flat(judged, lambda each: np.array([f"{each.name}/{model}" for model in each.models]))
    predicted = {OURS: _flat(judged, lambda each: each.predicted)}
    if all(each.baseline is not None for each in judged):
        predicted[BASELINE] = _flat(judged, lambda each: np.asarray(each.baseline))
    ranked = {who: Ranked(quality, values) for who, values in predicted.items()}
    errors = {who: (quality - values) ** 2 for who, values in predicted.items()}
    figures: list[Figure] = []

    def add(name: str, of: str, statistic: Callable[[np.ndarray], float]) -> None:
        def of_rows(rows: np.ndarray) -> float:
            return statistic(np.bincount(rows, minlength=len(quality)).astype(float))

        figures.append(resampled_figure(name, of, part, blocks, of_rows, resamples=_RESAMPLES, seed=seed))

    for who, values in predicted.items():
        add("AUC", who, ranked[who].auc)
        within = auc_within_models(quality, values, of_model)
        figures.append(Figure("AUC within models", who, part, within, rows=len(quality)))
        add("Brier score", who, _mean_of(errors[who]))
        figures.append(
            Figure("ECE", who, part, expected_calibration_error(quality, values), rows=len(quality))
        )
    if BASELINE in predicted:
        add("AUC", DIFFERENCE, lambda weights: ranked[OURS].auc(weights) - ranked[BASELINE].auc(weights))
        add("Brier score", DIFFERENCE, _mean_of(errors[OURS] - errors[BASELINE]))
    return figures


def _flat(judged: list[Judged], table: Callable[[Judged], np.ndarray]) -> np.ndarray:
    """The cells of tables (P, M), or of what spreads to them, where there is an answer."""
    return np.concatenate(
        [np.broadcast_to(table(each), each.quality.shape)[~np.isnan(each.quality)] for each in judged]
    )


def _mean_of(values: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda weights: float(weights @ values / weights.sum())


def auc_within_models(quality: np.ndarray, predicted: np.ndarray, of_model: np.ndarray) -> float:
    """The mean over models of each one's AUC, weighted by its rows; NaN where no model has one."""
    found = []
    for model in np.unique(of_model):
        rows = of_model == model
        found.append((soft_auc(quality[rows], predicted[rows]), int(rows.sum())))
    auc, rows_of = np.array(found).T
    known = ~np.isnan(auc)
    return float(np.average(auc[known], weights=rows_of[known])) if known.any() else float("nan")


# --- curves and words -----------------------------------------------------------------------------------
def _curves(judged: list[Judged]) -> list[Curve]:
    curves = []
    for source, members in sorted(grouped(judged, attrgetter("source")).items()):
        quality = _flat(members, lambda each: each.quality)
        predicted = _flat(members, lambda each: each.predicted)
        bins = equal_bins(predicted)
        curves.append(_curve("Reliability", source, [(predicted[part], quality[part]) for part in bins]))
        tasks = _flat(members, lambda each: each.tasks[:, None])
        by_task = [tasks == task for task in np.unique(tasks)]
        enough = [rows for rows in by_task if rows.sum() >= _LEAST_OF_TASK]
        curves.append(
            _curve("Quality by task", source, [(predicted[rows], quality[rows]) for rows in enough])
        )
    return curves


def _curve(title: str, of: str, points: list[tuple[np.ndarray, np.ndarray]]) -> Curve:
    means = sorted((float(predicted.mean()), float(actual.mean())) for predicted, actual in points)
    x, y = tuple(each for each, _ in means), tuple(each for _, each in means)
    return Curve(title, of, "predicted quality", "actual quality", x, y, scattered="task" in title)


def _notes(labels: Labels, judged: list[Judged]) -> list[str]:
    unknown = len(labels.heads) - sum(len(each.models) for each in judged)
    notes = [
        "AUC counts an answer of quality q as q of a good one and 1 - q of a bad one. The baseline is one logistic "
        "regression a model on TF-IDF of words and pairs, with such soft labels and its C chosen on an inner split.",
        "Shares of the gap are of (oracle - random). Qualities measured differently are never compared: one part a "
        "kind. The best model per task knows each prompt's task, the predictor does not.",
    ]
    if unknown:
        notes.append(f"{unknown} models of the test data are unknown to the artifact and left out.")
    return notes
