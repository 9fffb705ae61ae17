"""All pickers on one case: folds, orders and targets in, one report out.

Groups of prompts are parted into folds; each fold is replayed by predictors trained on the others. The folds
together are every prompt once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluate.figures import Resampled
from benchmarks.pickers.cases import Case, Table, part, table_of
from benchmarks.pickers.figures import (
    PickerResult,
    area,
    cost_at,
    interval,
    joined,
    priced_frontier,
    ratio_of_savings,
    result_of,
    savings,
    summary,
    true_frontier,
)
from benchmarks.pickers.replay import orders, replay
from benchmarks.pickers.trained import Predicted, fold_of, predict, trained
from benchmarks.terminal import Progress
from policies import POLICIES, PolicySettings
from policies.settings import Targets
from predictors.training.dataset import Dataset

OURS = "cost"
#: The pickers that `cost` is held against.
RIVALS = ("knn_rr", "clusters_rr", "logistic_rr", "eccos_rr", "eccos_r_rr", "llm_router_rr", "budget_online")
PICKERS = (OURS, *RIVALS, "best_single", "relevance", "price")
#: Quality below the best single model's at which costs are compared.
_LOSS = 0.005
#: The targets of the sweep: this far below the best single model by the picker's own estimates; and shares of the way
#: from the cheapest model's mean quality to the best's, and beyond.
_SWEPT_SLACKS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)
_SWEPT_SHARES = (0.0, 0.4, 0.7, 1.1)
_SWEPT_SEEDS = 1


@dataclass(frozen=True, slots=True)
class Fold:
    """One part: what is replayed, what was said of it, and what the training prompts show of the models: the best
    one's column, the best one's for each prompt's task, and mean quality by model."""

    table: Table
    predicted: Predicted
    best: int
    best_of_task: np.ndarray
    means: np.ndarray


def folds_of(
    case: Case, data: Dataset, folder: Path, count: int, seed: int, progress: Progress
) -> list[Fold]:
    """Train and ask; artifacts are kept in `folder`."""
    fold = fold_of(data, count)
    found = []
    for number in range(count):
        train = data.keep(prompt=lambda each, number=number: fold[each.id] != number)  # type: ignore[misc]
        test = data.keep(prompt=lambda each, number=number: fold[each.id] == number)  # type: ignore[misc]
        show = partial(_prefixed, progress, f"{case.set}, part {number + 1} of {count}: ")
        at = trained(train, folder / f"{case.set}-{count}-{number}", seed, show)
        table, known = table_of(case, test), table_of(case, train)
        means = known.quality.mean(axis=0)
        cheapest_first = np.lexsort((known.cost_usd.mean(axis=0), -means))
        of_task = {
            task: int(part(known, np.flatnonzero(known.tasks == task)).quality.mean(axis=0).argmax())
            for task in np.unique(known.tasks)
        }
        best = int(cheapest_first[0])
        per_task = np.array([of_task.get(task, best) for task in table.tasks])
        found.append(Fold(table, predict(at, train, table), best, per_task, means))
    return found


def _prefixed(progress: Progress, prefix: str, line: str) -> None:
    progress(prefix + line)


def judge(
    case: Case, folds: Sequence[Fold], seeds: int, progress: Progress, targets: Targets | None = None
) -> dict[str, Any]:
    """The report of one case. `targets` are what pickers hold (None: the defaults)."""
    groups = np.concatenate([fold.table.groups for fold in folds])
    resampled = Resampled(groups)
    fixed = _fixed(folds)
    best = fixed["best single model"]
    quality = np.concatenate([fold.table.quality for fold in folds])
    cost_usd = np.concatenate([fold.table.cost_usd for fold in folds])
    singles = list(zip(quality.mean(axis=0).tolist(), cost_usd.mean(axis=0).tolist(), strict=True))
    low_usd, high_usd = float(cost_usd.mean(axis=0).min()), best.point[1]
    wanted = best.point[0] - _LOSS
    random, top = float(quality.mean()), float(quality.max(axis=1).mean())

    def row_of(each: PickerResult, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
        row: dict[str, Any] = summary(resampled, each, best)
        row["usd_per_1000"] = each.point[1] * 1000
        row["share_of_gap"] = (each.point[0] - random) / (top - random) if top > random else None
        row["saving_at_equal_quality"] = 1.0 - cost_at([*points, *singles], wanted) / best.point[1]
        row["area"] = area([*points, *singles], low_usd, high_usd)
        return row

    policies: dict[str, dict[str, Any]] = {}
    reached: dict[str, PickerResult] = {}
    for name in (each for each in PICKERS if each in POLICIES):
        progress(f"{case.name}: {name}")
        reached[name] = _played(name, folds, seeds, targets or Targets())
        policies[name] = row_of(reached[name], [reached[name].point, *_swept(name, folds)])
    oracle = true_frontier(quality, cost_usd)
    bounds = {
        "oracle": oracle,
        "fixed price, our predictions": _allowed(
            folds, lambda fold: (fold.predicted.quality, fold.predicted.cost_usd)
        ),
        "fixed price, our quality and true cost": _allowed(
            folds, lambda fold: (fold.predicted.quality, fold.table.cost_usd)
        ),
    }
    ours = reached.get(OURS)
    if ours is not None:
        for name in RIVALS:
            if name in reached:
                policies[name]["our_saving_over_its"] = ratio_of_savings(resampled, ours, reached[name], best)
    top_saving = 1.0 - cost_at(oracle, wanted) / best.point[1]
    for row in policies.values():
        row["share_of_oracle_saving"] = row["saving_at_equal_quality"] / top_saving
    return {
        "case": case.name,
        "quality_slack": (targets or Targets()).quality_slack,
        "models": list(case.models),
        "prompts": len(quality),
        "groups": len(np.unique(groups)),
        "random": random,
        "best_of_each": top,
        "policies": policies,
        "fixed": {name: row_of(each, [each.point]) for name, each in fixed.items()},
        "bounds": {
            name: {
                "saving_at_equal_quality": 1.0 - cost_at(points, wanted) / best.point[1],
                "area": area([*points, *singles], low_usd, high_usd),
            }
            for name, points in bounds.items()
        },
        "price": _price(folds, reached, resampled),
    }


def _fixed(folds: Sequence[Fold]) -> dict[str, PickerResult]:
    def of(pick: Callable[[Fold], np.ndarray]) -> PickerResult:
        return joined([result_of(fold.table, [pick(fold)]) for fold in folds])

    return {
        "best single model": of(lambda fold: np.full(len(fold.table.prompts), fold.best)),
        "best model per task": of(lambda fold: fold.best_of_task),
        "greatest predicted quality": of(lambda fold: fold.predicted.quality.argmax(axis=1)),
    }


def _played(name: str, folds: Sequence[Fold], seeds: int, targets: Targets) -> PickerResult:
    found = []
    for fold in folds:
        settings = PolicySettings(targets=lambda key: targets, text=fold.predicted.text)
        picks = [
            replay(POLICIES[name](settings), fold.table, fold.predicted.predictions, order, seed)
            for seed, order in enumerate(orders(len(fold.table.prompts), seeds))
        ]
        found.append(result_of(fold.table, picks))
    return joined(found)


def _swept(name: str, folds: Sequence[Fold]) -> list[tuple[float, float]]:
    """Points of a picker whose target is moved from the cheapest model's quality to beyond the best one's."""
    means = np.mean([fold.means for fold in folds], axis=0)
    cheapest = int(np.mean([fold.table.cost_usd.mean(axis=0) for fold in folds], axis=0).argmin())
    low, high = float(means[cheapest]), float(means.max())
    if low >= high:
        low = float(means.min())
    targets = [Targets(quality_slack=slack) for slack in _SWEPT_SLACKS]
    targets += [Targets(quality=min(max(low + share * (high - low), 0.0), 1.0)) for share in _SWEPT_SHARES]
    return [_played(name, folds, _SWEPT_SEEDS, each).point for each in targets]


def _allowed(
    folds: Sequence[Fold], estimates: Callable[[Fold], tuple[np.ndarray, np.ndarray]]
) -> list[tuple[float, float]]:
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
    always = joined(
        [
            result_of(fold.table, [np.full(len(fold.table.prompts), int(_cheapest_tariff(fold.table)))])
            for fold in folds
        ]
    )
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
