"""Which share of the variance of answers' lengths is explained: by the length model that comes with Headway, and by the mean
of the model's other answers. Both are judged on prompts of sets that the length model was not trained on; the means are of the
other half of the prompts. Groups of near copies are never on both sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.datasets.public import present, read_public
from benchmarks.evaluate.length import answers_of, shares_of
from benchmarks.experiments.variance import Explained
from predictors.learned.length_model import LengthModel, quantiles
from predictors.learned.models import Models
from predictors.training.dataset import Dataset, split_prompts

WHAT, LSTM, MEAN = "output tokens", "length model (LSTM)", "mean of the model's answers"
#: Sets with lengths of whole answers.
SETS = ("zeroeval", "alpaca_eval", "arena_2023")
#: Prompts of a set that are judged at most.
_MOST_PROMPTS = 300


def explained(data: Path, models: Models, trained_on: Set[str], seed: int) -> Iterator[Explained]:
    """By set that `data` has and the length model has not seen: of log output tokens, of all variance and of that inside a
    model."""
    if models.length is None:
        return
    for name in present(data, SETS):
        if name not in trained_on:
            yield from _of_set(name, read_public(data, (name,)), models.length, seed)


def _of_set(name: str, found: Dataset, model: LengthModel, seed: int) -> Iterator[Explained]:
    known, judged = (
        [each for each in part.answers if each.output_tokens and not each.capped]
        for part in split_prompts(found, 0.5, seed)
    )
    logs: dict[str, list[float]] = defaultdict(list)
    for each in known:
        logs[each.model].append(float(np.log(each.output_tokens or 1)))
    kept = set(sorted({each.prompt for each in judged})[:_MOST_PROMPTS])
    judged = [each for each in judged if each.prompt in kept and each.model in logs]
    if not judged:
        return
    actual = np.log([float(each.output_tokens or 1) for each in judged])
    groups = {each.id: each.group for each in found.prompts}
    blocks = np.array([groups[each.prompt] for each in judged])
    models = [each.model for each in judged]
    data = replace(found, answers=tuple(judged))
    predicted = {
        LSTM: np.log(np.maximum(quantiles(shares_of(model, *answers_of(data)), 0.5), 1.0)),
        MEAN: np.array([np.mean(logs[each.model]) for each in judged]),
    }
    for of, values in predicted.items():
        yield Explained.by((WHAT, name, of), actual, values, blocks, models, seed)
