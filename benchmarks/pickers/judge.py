"""All pickers on one case: splits, orders and targets in, one report out.

What is judged is never learned from. Several folds together are every prompt once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluate.figures import Resampled
from benchmarks.evaluate.relevance_baseline import fitted_baseline
from benchmarks.pickers.cases import Case, Table, part, table_of, usd_of
from benchmarks.pickers.figures import (
    PickerResult,
    area,
    cost_at,
    interval,
    joined,
    priced_frontier,
    result_of,
    savings,
    savings_at,
    summary,
    true_frontier,
    verdict,
)
from benchmarks.pickers.replay import Picks, SimulatedCheck, orders, replay
from benchmarks.pickers.trained import Predicted, Split, artifacts_of, predict
from benchmarks.terminal import Progress, prefixed
from policies import POLICIES, PolicySettings
from predictors.learned.relevance import exact_name
from predictors.training.relevance_labels import labels_of
from router.core.types import Targets

OURS = "cost"
#: The pickers that `cost` is held against.
RIVALS = ("knn_rr", "clusters_rr", "logistic_rr", "eccos_rr", "eccos_r_rr", "llm_router_rr", "budget_online")
PICKERS = (OURS, *RIVALS, "best_single", "relevance", "price")
#: Quality below the best single model's at which costs are compared.
LOSS = 0.005
#: The targets of the sweep: this far below the best single model by the picker's own estimates; and shares of the way
#: from the cheapest model's mean quality to the best's, and beyond.
_SWEPT_SLACKS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)
_SWEPT_SHARES = (0.0, 0.4, 0.7, 1.1)
_SWEPT_SEEDS = 1


Estimates = tuple[np.ndarray, np.ndarray]  # (P, M) qualities, (P, M) prices in USD


@dataclass(frozen=True, slots=True)
class Fold:
    """One part: what is replayed, what was predicted of it, and what the training prompts show of the models: `means`
    (M,) their qualities, `of_task` their means at each prompt's task, `from_words` what a logistic regression on TF-IDF
    makes of them (P, M)."""

    table: Table
    predicted: Predicted
    means: np.ndarray
    of_task: Estimates
    from_words: np.ndarray

    @property
    def best(self) -> int:
        """The best single model's column; of equal ones the first."""
        return int(self.means.argmax())


def folds_of(
    case: Case, who: str, splits: Sequence[Split], folder: Path, seed: int, progress: Progress
) -> list[Fold]:
    """Train and ask; artifacts are kept in `folder`. Empty if the artifacts do not know the models."""
    found = []
    for number, split in enumerate(splits):
        show = prefixed(progress, f"{case.name}, {who}, part {number + 1} of {len(splits)}: ")
        train = split.train.keep(prompt=lambda each: each.source == case.set)
        table = table_of(case, split.test.keep(prompt=lambda each: each.source == case.set))
        known = table_of(case, train)
        predicted = predict(artifacts_of(who, split, case.set, folder, seed, show), known, table)
        if predicted is None:
            progress(f"{case.name}: the artifacts of {who} do not know all of its models")
            return []
        labels = labels_of(train)
        scale = next(name for name in labels.scales if name.startswith(f"{case.set}/"))
        names = [exact_name(each) for each in case.models.values()]
        words = fitted_baseline(labels, scale, names, table.prompts, seed)
        found.append(Fold(table, predicted, known.quality.mean(axis=0), _of_task(known, table), words))
    return found


def _of_task(known: Table, table: Table) -> Estimates:
    """Mean quality of each model at each prompt's task, and its price with the mean length there."""
    everything = np.arange(len(known.prompts))
    quality, tokens = np.empty((2, *table.quality.shape))
    for task in np.unique(table.tasks):
        rows = np.flatnonzero(known.tasks == task)
        seen = part(known, rows if len(rows) else everything)
        quality[table.tasks == task] = seen.quality.mean(axis=0)
        tokens[table.tasks == task] = seen.output_tokens.mean(axis=0)
    return quality, usd_of(table.case, table.prompt_tokens, tokens)


def judge(case: Case, folds: Sequence[Fold], seeds: int, progress: Progress) -> dict[str, Any]:
    """The report of one case; each picker replays every fold in `seeds` orders."""
    groups = np.concatenate([fold.table.groups for fold in folds])
    resampled = Resampled(groups)
    fixed = _fixed(folds)
    singles = singles_of(folds)
    best = singles[-1]
    single_points = [each.point for each in singles]
    low_usd, high_usd = min(usd for _, usd in single_points), best.point[1]
    quality = np.concatenate([fold.table.quality for fold in folds])
    cost_usd = np.concatenate([fold.table.cost_usd for fold in folds])
    random, top = float(quality.mean()), float(quality.max(axis=1).mean())
    reached: dict[str, PickerResult] = {}
    equal: dict[str, np.ndarray] = {}

    def row_of(name: str, each: PickerResult, others: Sequence[PickerResult]) -> dict[str, Any]:
        points = [each, *others, *singles]
        equal[name] = savings_at(resampled, points, best, LOSS)
        return {
            **summary(resampled, each, best),
            "usd_per_1000": each.point[1] * 1000,
            "share_of_gap": (each.point[0] - random) / (top - random) if top > random else None,
            "saving_at_equal_quality": interval(equal[name]),
            "area": area([one.point for one in points], low_usd, high_usd),
        }

    policies: dict[str, dict[str, Any]] = {}
    for name in (each for each in PICKERS if each in POLICIES):
        progress(f"{case.name}: {name}")
        reached[name] = brought(folds, played(name, folds, seeds, Targets()))
        policies[name] = row_of(name, reached[name], swept(name, folds))
    for name in RIVALS:
        if name in policies and OURS in policies:
            difference = interval(equal[OURS] - equal[name])
            policies[name] |= {"ours_minus_its": difference, "ours_saves": verdict(difference)}
    allowed = {"oracle": true_frontier(quality, cost_usd), **_allowed_by(folds)}
    return {
        "case": case.name,
        "quality_slack": Targets().quality_slack,
        "models": list(case.models),
        "prompts": len(quality),
        "groups": len(np.unique(groups)),
        "random": random,
        "best_of_each": top,
        "policies": policies,
        "fixed": {name: row_of(name, each, []) for name, each in fixed.items()},
        "bounds": {
            name: {
                "saving_at_equal_quality": 1.0
                - cost_at([*points, *single_points], best.point[0] - LOSS) / best.point[1],
                "area": area([*points, *single_points], low_usd, high_usd),
            }
            for name, points in allowed.items()
        },
        "relevance": _relevance(reached, fixed, resampled),
        "price": _price(folds, reached, resampled),
    }


def singles_of(folds: Sequence[Fold]) -> list[PickerResult]:
    """Each model alone; and last the best single model, which is not the same one in every fold."""
    models = range(len(folds[0].table.case.models))
    found = [joined([_always(fold.table, model) for fold in folds]) for model in models]
    return [*found, joined([_always(fold.table, fold.best) for fold in folds])]


def _relevance(
    reached: Mapping[str, PickerResult], fixed: Mapping[str, PickerResult], resampled: Resampled
) -> dict[str, dict[str, Any]]:
    """What `relevance` picks, against picks that need no prediction: difference of quality and verdict."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("best single model", "best model per task") if "relevance" in reached else ():
        difference = interval(
            resampled.means(reached["relevance"].quality) - resampled.means(fixed[name].quality)
        )
        found[name] = {"difference": difference, "verdict": verdict(difference)}
    return found


def _fixed(folds: Sequence[Fold]) -> dict[str, PickerResult]:
    def of(pick: Callable[[Fold], np.ndarray]) -> PickerResult:
        return joined([result_of(fold.table, [pick(fold)]) for fold in folds])

    return {
        "best single model": singles_of(folds)[-1],
        "best model per task": of(lambda fold: fold.of_task[0].argmax(axis=1)),
        "greatest predicted quality": of(lambda fold: fold.predicted.quality.argmax(axis=1)),
    }


def played(
    name: str,
    folds: Sequence[Fold],
    seeds: int,
    targets: Targets,
    checks: Sequence[SimulatedCheck] | None = None,
) -> list[list[Picks]]:
    """The picks of one policy in each fold, in each of `seeds` orders. `checks` has a check of answers for each fold."""
    found = []
    for at, fold in enumerate(folds):
        settings = PolicySettings(targets=lambda key: targets, text=fold.predicted.text)
        check = None if checks is None else checks[at]
        found.append(
            [
                replay(POLICIES[name](settings), fold.table, fold.predicted.predictions, order, seed, check)
                for seed, order in enumerate(orders(len(fold.table.prompts), seeds))
            ]
        )
    return found


def brought(folds: Sequence[Fold], found: Sequence[Sequence[Picks]]) -> PickerResult:
    """What such picks brought."""
    return joined(
        [
            result_of(fold.table, [each.models for each in picks], [each.more_usd for each in picks])
            for fold, picks in zip(folds, found, strict=True)
        ]
    )


def _always(table: Table, model: int) -> PickerResult:
    return result_of(table, [np.full(len(table.prompts), model)])


def swept(
    name: str, folds: Sequence[Fold], checks: Sequence[SimulatedCheck] | None = None
) -> list[PickerResult]:
    """What a picker reaches with each of the targets of the sweep."""
    return [brought(folds, played(name, folds, _SWEPT_SEEDS, each, checks)) for each in _swept_targets(folds)]


def _swept_targets(folds: Sequence[Fold]) -> list[Targets]:
    """Targets from the cheapest model's quality to beyond the best one's."""
    means = np.mean([fold.means for fold in folds], axis=0)
    cheapest = int(np.mean([fold.table.cost_usd.mean(axis=0) for fold in folds], axis=0).argmin())
    low, high = float(means[cheapest]), float(means.max())
    if low >= high:
        low = float(means.min())
    targets = [Targets(quality_slack=slack) for slack in _SWEPT_SLACKS]
    targets += [Targets(quality=min(max(low + share * (high - low), 0.0), 1.0)) for share in _SWEPT_SHARES]
    return targets


def _allowed_by(folds: Sequence[Fold]) -> dict[str, list[tuple[float, float]]]:
    """What each estimate allows at the best fixed price."""
    of: dict[str, Callable[[Fold], Estimates]] = {
        "our predictions": lambda fold: (fold.predicted.quality, fold.predicted.cost_usd),
        "our quality and true cost": lambda fold: (fold.predicted.quality, fold.table.cost_usd),
        "means of tasks": lambda fold: fold.of_task,
        "TF-IDF + logistic regression": lambda fold: (fold.from_words, fold.of_task[1]),
    }
    for name in folds[0].predicted.text:
        of[name] = partial(_by_text, name)
    return {f"fixed price, {name}": _allowed(folds, estimates) for name, estimates in of.items()}


def _by_text(name: str, fold: Fold) -> Estimates:
    """Where an estimator knows nothing of a model, the mean of the task stands for it."""
    models, table = list(fold.table.case.models), fold.table
    said = [fold.predicted.text[name](prompt.features, models) for prompt in table.prompts]
    quality = np.array([each.quality for each in said], dtype=float)
    tokens = np.array([each.output_tokens for each in said], dtype=float)
    usd = usd_of(table.case, table.prompt_tokens, tokens)
    usual_quality, usual_usd = fold.of_task
    return np.where(np.isnan(quality), usual_quality, quality), np.where(np.isnan(usd), usual_usd, usd)


def _allowed(folds: Sequence[Fold], estimates: Callable[[Fold], Estimates]) -> list[tuple[float, float]]:
    """The same price in every fold: the mean of their points, weighed by their prompts."""
    sizes = [len(fold.table.prompts) for fold in folds]
    each = [priced_frontier(fold.table, *estimates(fold)) for fold in folds]
    mean = np.average(np.array(each), axis=0, weights=sizes)
    return [(float(quality), float(usd)) for quality, usd in mean]


def _price(
    folds: Sequence[Fold], reached: Mapping[str, PickerResult], resampled: Resampled
) -> dict[str, list[float]] | None:
    """`price` against always taking the cheapest tariff, and against choosing with true lengths; relative cost."""
    if "price" not in reached:
        return None
    always = joined([_always(fold.table, _cheapest_tariff(fold.table)) for fold in folds])
    known = joined([result_of(fold.table, [fold.table.cost_usd.argmin(axis=1)]) for fold in folds])
    ours = reached["price"]
    return {
        "over_cheapest_tariff": interval(-savings(resampled, ours, always)),
        "over_true_lengths": interval(-savings(resampled, ours, known)),
        "cheapest_tariff_over_true_lengths": interval(-savings(resampled, always, known)),
    }


def _cheapest_tariff(table: Table) -> int:
    """The model of the least price for a prompt and an answer of one length."""
    prices = [table.case.prices[model] for model in table.case.models]
    return min(range(len(prices)), key=lambda at: prices[at].cost_usd(1.0, 1.0))
