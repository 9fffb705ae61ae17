"""Which artifacts are judged, and what they predict of the prompts that are replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.datasets.contents import rows
from benchmarks.datasets.splits import digest
from benchmarks.evaluate.picks import check_apart
from benchmarks.pickers.cases import Case, Table, part
from benchmarks.pickers.replay import options_of, request_of
from benchmarks.terminal import Progress, prefixed
from benchmarks.training.defaults import only_allowed
from benchmarks.training.train import trainer
from predictors.learned.artifact import SHIPPED, load, path_of, save
from predictors.learned.models import KINDS, Models, load_models
from predictors.learned.text_only import TextModels
from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Dataset, fraction_of
from router.core.interfaces import Option, SentAttempt, TextEstimates, TextEstimator
from router.core.types import Prediction, PromptFeatures

#: What is trained of each set, where it has the data for it.
_KINDS = ("length", "relevance", "text")
#: Training prompts that the predictor is shown as served before it is asked, so that the fleet's own lengths are
#: known as they would be after a while.
_WARM_UP_PROMPTS = 200


#: Whose artifacts are judged: trained on the case's own set, on all sets, or on what the shipped ones may be trained on.
ARTIFACTS = ("own", "all", "shipped")


@dataclass(frozen=True, slots=True)
class Split:
    """What is learned from and what is replayed; no prompt of one has a near copy in the other. `name` is None for a
    test set that the shipped artifacts have not seen either."""

    train: Dataset
    test: Dataset
    name: str | None


def splits(data: Dataset, test: Dataset | None, folds: int, seed: int) -> list[Split]:
    """The test set, or without one each fold of the data. Raises DatasetError for near copies of the data in the test
    set."""
    if test is not None:
        check_apart(test, data)
        return [Split(data, test, None)]
    fold = fold_of(data, folds, seed)
    return [
        Split(
            data.keep(prompt=lambda each, out=number: fold[each.id] != out),  # type: ignore[misc]
            data.keep(prompt=lambda each, out=number: fold[each.id] == out),  # type: ignore[misc]
            f"{folds}-{seed}-{number}",
        )
        for number in range(folds)
    ]


def fold_of(data: Dataset, folds: int, seed: int) -> dict[str, int]:
    """By prompt: the fold in which it is held out. Whole groups, and not the parts that training makes of them."""
    return {prompt.id: int(fraction_of(prompt.group, seed + 6) * folds) for prompt in data.prompts}


def artifacts_of(who: str, split: Split, source: str, folder: Path, seed: int, progress: Progress) -> Path:
    """The folder of what `who` (of `ARTIFACTS`, or a folder) has learned, for prompts of this source."""
    if who not in ARTIFACTS:
        return Path(who)
    if who == "shipped" and split.name is None:
        return SHIPPED
    if who == "own":
        train = split.train.keep(prompt=lambda each: each.source == source)
    else:
        train = only_allowed(split.train) if who == "shipped" else split.train
    # Other sets make other groups, and so other folds: what was learned from them may know the prompts of this one.
    of = f"{split.name or 'whole'}-{digest(train, of_prompts=True)}"
    return trained(train, folder / f"{source if who == 'own' else who}-{of}", seed, progress)


def trained(data: Dataset, folder: Path, seed: int, progress: Progress) -> Path:
    """Artifacts of all kinds that the data can teach, in `folder`; those that are there already stay. Remove the
    folder to train anew."""
    for name in _KINDS:
        kind = KINDS.get(name)
        if kind is None or path_of(folder, name).is_file() or not rows(kind, data):
            continue
        with threadpool_limits(limits=1):
            save(trainer(kind)(data, seed=seed, progress=prefixed(progress, f"{name}: ")), folder)
    return folder


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the trained predictors say of a table's prompts: `predictions` for each prompt and model, and the
    text-only estimators."""

    predictions: list[list[Prediction]]
    text: Mapping[str, TextEstimator]

    @property
    def quality(self) -> np.ndarray:
        """(P, M) predicted quality."""
        return np.array([[each.quality for each in row] for row in self.predictions], dtype=float)

    @property
    def cost_usd(self) -> np.ndarray:
        """(P, M) expected price."""
        return np.array([[each.cost_usd for each in row] for row in self.predictions], dtype=float)


def predict(folder: Path, known: Table, table: Table) -> Predicted | None:
    """Ask the artifacts of `folder` about the prompts of `table`; the fleet has served some of `known` before. None if
    they do not know the quality of all models by their names in the fleet."""
    models = own_models(folder)
    predictor = OnlinePredictor(models)
    case = table.case
    if models.relevance is None or not all(map(models.relevance.knows, case.models)):
        return None
    if models.length is not None:
        _warm_up(predictor, part(known, range(min(_WARM_UP_PROMPTS, len(known.prompts)))))
    predictions = []
    for row in range(len(table.prompts)):
        options = options_of(case)
        request = request_of(table, row, "", 0.0)
        predictor.predict_all(request, options, 0.0)
        predictions.append(
            [_served_prediction(option, int(table.prompt_tokens[row]), case) for option in options]
        )
    text: dict[str, TextEstimator] = {}
    if path_of(folder, "text").is_file():
        estimators = TextModels.load(load(path_of(folder, "text"), "text")).estimators
        text = {name: _cached(each, case.tokens) for name, each in estimators.items()}
    return Predicted(predictions, text)


def own_models(folder: Path) -> Models:
    """The artifacts of the folder alone: no shipped one stands in for what it lacks."""
    found = load_models(folder)
    return Models(**{kind: getattr(found, kind) for kind in KINDS if path_of(folder, kind).is_file()})


def _warm_up(predictor: OnlinePredictor, table: Table) -> None:
    options = options_of(table.case)
    for row in range(len(table.prompts)):
        request = request_of(table, row, "", 0.0)
        predictor.predict_all(request, options, 0.0)
        for at, option in enumerate(options):
            if option.prediction is not None:
                attempt = SentAttempt(request, option.candidate, option.instance, option.prediction)
                tokens = int(table.output_tokens[row, at])
                predictor.observe_end(attempt, tokens, request.max_tokens, None, None, 0.0)


def _served_prediction(option: Option, prompt_tokens: int, case: Case) -> Prediction:
    predicted = option.prediction
    assert predicted is not None  # noqa: S101 (predict_all has just given it)
    lengths = predicted.output_tokens_p50, predicted.output_tokens_p90, predicted.output_tokens_mean
    cost_usd = predicted.cost_usd
    if case.tokens is not None:
        lengths = (case.tokens,) * 3
        cost_usd = option.candidate.price.cost_usd(prompt_tokens, case.tokens)
    return Prediction(
        *lengths,
        e2e_s_mean=predicted.e2e_s_mean,
        quality=predicted.quality,
        quality_sd=predicted.quality_sd,
        cost_usd=cost_usd,
    )


def _cached(estimator: TextEstimator, tokens: float | None) -> TextEstimator:
    """One call of the estimator for each prompt, whatever the order and the policies; `tokens` stands for lengths that
    nobody knows."""

    @cache
    def estimates(features: PromptFeatures, models: tuple[str, ...]) -> TextEstimates:
        found = estimator(features, models)
        return found if tokens is None else TextEstimates(found.quality, [tokens] * len(models))

    return lambda features, models: estimates(features, tuple(models))
