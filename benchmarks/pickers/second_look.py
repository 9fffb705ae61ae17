"""`cost` with a check of its answers, against `cost` without one.

A simulated check draws its score from the truth (`benchmarks.simulator.checks`): so its d' is known, and what a check must be
able to do, and may cost, can be read off. A check of lengths is a real one: what a logistic regression makes of an answer's
length beside the predictions, learned from other prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from benchmarks.evaluate.figures import Resampled
from benchmarks.pickers.cases import Case
from benchmarks.pickers.figures import interval, savings, savings_at, verdict
from benchmarks.pickers.judge import LOSS, OURS, Fold, brought, played, singles_of, swept
from benchmarks.pickers.replay import SimulatedCheck
from benchmarks.simulator.checks import drawn_score
from benchmarks.terminal import Progress
from router.core.types import AnswerCheck, Price, Targets

#: (d' of the check, d' that `cost` is told, price in answers of the best single model)
_SIMULATED = (
    *((d, d, price) for price in (0.0, 0.1, 0.3) for d in (1.0, 1.5, 2.0, 3.0)),
    *((1.0, 2.0, 0.1), (2.0, 1.0, 0.1)),
)
_EDGE = 0.01
_VERIFIER_FOLDS = 4

Checks = Sequence[SimulatedCheck]


def second_looks(case: Case, folds: Sequence[Fold], seeds: int, progress: Progress) -> dict[str, Any]:
    """The report of one case: `without` a check, and a row for each check."""
    resampled = Resampled(np.concatenate([fold.table.groups for fold in folds]))
    singles = singles_of(folds)
    best = singles[-1]

    def reached(checks: Checks | None) -> tuple[dict[str, Any], np.ndarray]:
        own = played(OURS, folds, seeds, Targets(), checks)
        result = brought(folds, own)
        equal = savings_at(resampled, [result, *swept(OURS, folds, checks), *singles], best, LOSS)
        picks = [each for fold in own for each in fold]
        row = {
            "saving_at_equal_quality": interval(equal),
            "above_best_single": interval(resampled.means(result.quality) - resampled.means(best.quality)),
            "saving": interval(savings(resampled, result, best)),
            "checked": float(np.mean([each.checked.mean() for each in picks])),
            "replaced": float(np.mean([each.replaced.mean() for each in picks])),
        }
        return row, equal

    without, equal_without = reached(None)
    rows = []
    for name, told, price, checks in _checks(case, folds, best.point[1]):
        progress(f"{case.name}: {name}")
        row, equal = reached(checks)
        more = interval(equal - equal_without)
        rows.append(
            {"check": name, "told": told, "price": price, **row, "more": more, "saves": verdict(more)}
        )
    return {
        "case": case.name,
        "models": list(case.models),
        "prompts": sum(len(fold.table.prompts) for fold in folds),
        "groups": len(np.unique(np.concatenate([fold.table.groups for fold in folds]))),
        "quality_slack": Targets().quality_slack,
        "correlation": _correlation(folds),
        "without": without,
        "checks": rows,
    }


def auc_of(dprime: float) -> float:
    """The probability that a check rates a good answer above a poor one."""
    return float(ndtr(dprime / 2**0.5))


def _checks(
    case: Case, folds: Sequence[Fold], answer_usd: float
) -> list[tuple[str, float, float, list[SimulatedCheck]]]:
    """Each check by name: the d' that `cost` is told, its price in answers, and the check in each fold."""
    found = [
        (
            f"simulated, d' {dprime:g}",
            told,
            price,
            [SimulatedCheck(_priced(told, price * answer_usd), _drawn(fold, dprime)) for fold in folds],
        )
        for dprime, told, price in _SIMULATED
    ]
    if case.tokens is None:
        ratios = _length_ratios(folds)
        measured = _measured_dprime(folds, ratios)
        checks = [
            SimulatedCheck(_priced(measured, 0.0), _known(np.asarray(ndtr(each / measured))))
            for each in ratios
        ]
        found.append(("its length", measured, 0.0, checks))
    return found


def _priced(dprime: float, usd: float) -> AnswerCheck:
    return AnswerCheck(dprime, Price(0.0, usd * 1e6), 0, 1, 0.0)


def _drawn(fold: Fold, dprime: float) -> Callable[[int, int], float]:
    table = fold.table
    return lambda row, model: drawn_score(
        f"{table.prompts[row].id} {model}", float(table.quality[row, model]), dprime
    )


def _known(scores: np.ndarray) -> Callable[[int, int], float]:
    return lambda row, model: float(scores[row, model])


def _correlation(folds: Sequence[Fold]) -> list[float]:
    """Of what is not predicted of two models' qualities: least, median and greatest of all pairs."""
    predicted = np.concatenate([fold.predicted.quality for fold in folds])
    true = np.concatenate([fold.table.quality for fold in folds])
    inside = np.clip(predicted, _EDGE, 1.0 - _EDGE)
    found = np.corrcoef(((true - predicted) / np.sqrt(inside * (1.0 - inside))).T)
    pairs = found[np.triu_indices(len(found), 1)]
    return [float(pairs.min()), float(np.median(pairs)), float(pairs.max())]


# --- the check of lengths ----------------------------------------------------------------------------------
def _length_ratios(folds: Sequence[Fold]) -> list[np.ndarray]:
    """For each fold (P, M): the log likelihood ratio of good and poor that an answer's length adds to the prediction. It
    is learned from other groups of prompts than it is used on."""
    groups = np.concatenate([fold.table.groups for fold in folds])
    columns = []
    for model in range(folds[0].table.quality.shape[1]):
        quality = np.concatenate([fold.predicted.quality[:, model] for fold in folds])
        expected = np.concatenate(
            [[row[model].output_tokens_mean or 1.0 for row in fold.predicted.predictions] for fold in folds]
        )
        tokens = np.concatenate([fold.table.output_tokens[:, model] for fold in folds]) + 1.0
        good = np.concatenate([fold.table.quality[:, model] for fold in folds]) > 0.5
        prior = _logit(quality)
        longer = np.log(tokens / expected)
        features = np.column_stack([prior, longer, np.maximum(longer, 0.0), np.log(tokens)])
        split = GroupKFold(_VERIFIER_FOLDS)
        said = cross_val_predict(
            LogisticRegression(), features, good, groups=groups, cv=split, method="predict_proba"
        )
        columns.append(_logit(said[:, 1]) - prior)
    ratios = np.column_stack(columns)
    ends = np.cumsum([len(fold.table.prompts) for fold in folds])[:-1]
    return list(np.split(ratios, ends))


def _measured_dprime(folds: Sequence[Fold], ratios: Sequence[np.ndarray]) -> float:
    """The d' of such ratios: their means over good and over poor answers are d'^2 apart."""
    every = np.concatenate(ratios)
    good = np.concatenate([fold.table.quality for fold in folds]) > 0.5
    return float(np.sqrt(max(every[good].mean() - every[~good].mean(), 0.01)))


def _logit(p: np.ndarray) -> np.ndarray:
    inside = np.clip(p, _EDGE, 1.0 - _EDGE)
    return np.asarray(np.log(inside / (1.0 - inside)))
