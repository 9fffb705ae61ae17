"""What lengths are compared with: the median of a model on a task, and the yardstick, TF-IDF + ridge.

The yardstick is word 1-2-grams with sublinear TF-IDF on the whole text, where a sign counts as a word, and for each model
a ridge on log lengths, whose strength is chosen on folds of whole groups of the training prompts. Its 90 % quantile is its
prediction moved by the quantile of what it missed on those folds, for each model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.evaluate.picks import text_of
from predictors.training.dataset import Prompt, fraction_of

MEDIAN = "median per model and task"
YARDSTICK = "TF-IDF + ridge on log length"
PROBABILITIES = (0.5, 0.9)

#: Words, numbers and single signs: on ZeroEval's prompts this was stronger than words alone.
_WORDS = r"\w+|[^\w\s]"
_STRENGTHS = np.array([0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0])
_FOLDS = 5
_SOLVER_STEPS = 200
_SOLVER_RESIDUAL = 1e-5


@dataclass(frozen=True)
class Answers:
    """Answers as arrays: index of the prompt, key of the model, tokens, whether cut there."""

    prompts: tuple[Prompt, ...]
    prompt: np.ndarray
    model: np.ndarray
    tokens: np.ndarray
    capped: np.ndarray

    def part(self, rows: np.ndarray) -> Answers:
        """Some of the answers, of the same prompts."""
        return Answers(
            self.prompts, self.prompt[rows], self.model[rows], self.tokens[rows], self.capped[rows]
        )


def absolute_errors(answers: Answers, predicted: np.ndarray) -> np.ndarray:
    """Tokens between answer and prediction. A cut answer is missed by what a prediction is below its cut, and not
    at all by one above it."""
    error = predicted - answers.tokens
    return np.asarray(np.where(answers.capped, np.maximum(-error, 0.0), np.abs(error)))


def baselines(train: Answers, test: Answers, seed: int) -> dict[str, np.ndarray]:
    """By name (answers, len(PROBABILITIES)) predictions in tokens for the test answers."""
    return {MEDIAN: _medians(train, test), YARDSTICK: _ridge(train, test, seed)}


def task_of(prompt: Prompt) -> str:
    """Source and the source's own label."""
    return f"{prompt.source}/{prompt.task or ''}"


def _medians(train: Answers, test: Answers) -> np.ndarray:
    tables: list[dict[object, np.ndarray]] = []
    kinds: tuple[Callable[[Answers], list[object]], ...] = (_cells, lambda each: list(each.model), _one)
    for keys in kinds:
        of_key: dict[object, list[float]] = {}
        for key, tokens in zip(keys(train), train.tokens, strict=True):
            of_key.setdefault(key, []).append(tokens)
        tables.append({key: np.quantile(values, PROBABILITIES) for key, values in of_key.items()})
    asked = zip(*(keys(test) for keys in kinds), strict=True)
    return np.array(
        [next(table[key] for table, key in zip(tables, keys, strict=True) if key in table) for keys in asked]
    )


def _cells(answers: Answers) -> list[object]:
    tasks = [task_of(prompt) for prompt in answers.prompts]
    return [(model, tasks[prompt]) for model, prompt in zip(answers.model, answers.prompt, strict=True)]


def _one(answers: Answers) -> list[object]:
    return [None] * len(answers.tokens)


@dataclass(frozen=True)
class _Table:
    """Mean log lengths by prompt and model, (prompts, models); `there` is 1 where there is an answer, else 0."""

    mean: np.ndarray
    there: np.ndarray

    def part(self, prompts: np.ndarray) -> _Table:
        """The same with the answers of some prompts (a mask) only."""
        return _Table(self.mean, self.there * prompts[:, None])


def _ridge(train: Answers, test: Answers, seed: int) -> np.ndarray:
    """(answers, len(PROBABILITIES))."""
    used, position = np.unique(train.prompt, return_inverse=True)
    models, model = np.unique(train.model, return_inverse=True)
    overall = float(np.log(train.tokens).mean())
    kernel, cross = _similarities(train, used, test)
    table = _table_of(position, model, np.log(train.tokens))
    fold = np.array([int(fraction_of(train.prompts[row].group, seed + 500) * _FOLDS) for row in used])
    fitted = np.empty((len(_STRENGTHS), *table.mean.shape))
    for each in np.unique(fold):
        out = fold == each
        weights, level = _solved(kernel, table.part(~out), overall)
        fitted[:, out] = kernel[out] @ weights + level
    missed = np.log(train.tokens) - fitted[:, position, model]
    loss = np.array([np.bincount(model, each**2) for each in missed])
    best = loss.argmin(axis=0)
    missed = missed[best[model], np.arange(len(model))]
    above = np.array([np.quantile(missed[model == each], PROBABILITIES[1]) for each in range(len(models))])
    weights, level = _solved(kernel, table, overall)
    predicted = cross @ weights[best, :, np.arange(len(models))].T + level
    # A model without answers in training gets the mean of all.
    place = np.minimum(np.searchsorted(models, test.model), len(models) - 1)
    known = models[place] == test.model
    middle = np.where(known, predicted[test.prompt, place], overall)
    upper = middle + np.where(known, above[place], np.quantile(missed, PROBABILITIES[1]))
    return np.asarray(np.maximum(np.exp(np.stack((middle, upper), axis=1)), 1.0))


def _similarities(train: Answers, used: np.ndarray, test: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Products of TF-IDF rows: (used, used) of the training prompts, (prompts, used) of all prompts of the test."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORDS)
    try:
        given = vectorizer.fit_transform([text_of(train.prompts[row]) for row in used])
    except ValueError:  # not one word in all texts
        return np.zeros((len(used), len(used))), np.zeros((len(test.prompts), len(used)))
    wanted = vectorizer.transform([text_of(prompt) for prompt in test.prompts])
    return (given @ given.T).toarray(), (wanted @ given.T).toarray()


def _table_of(prompt: np.ndarray, model: np.ndarray, value: np.ndarray) -> _Table:
    shape = (int(prompt.max()) + 1, int(model.max()) + 1)
    cell = prompt * shape[1] + model
    count, total = (np.bincount(cell, each, shape[0] * shape[1]) for each in (np.ones(len(cell)), value))
    return _Table((total / np.maximum(count, 1.0)).reshape(shape), (count > 0).astype(float).reshape(shape))


def _solved(kernel: np.ndarray, table: _Table, overall: float) -> tuple[np.ndarray, np.ndarray]:
    """(weights (strengths, prompts, models), level (models,)): one ridge for each model, on the answers that it has. All
    are solved at once by conjugate gradients. A model without answers has weights 0 and the level of all."""
    count = table.there.sum(axis=0)
    level = np.where(count > 0, (table.mean * table.there).sum(axis=0) / np.maximum(count, 1.0), overall)
    there = np.tile(table.there, (1, len(_STRENGTHS)))
    strength = np.repeat(_STRENGTHS, len(level))
    residual = there * np.tile(table.mean - level, (1, len(_STRENGTHS)))
    found, direction = np.zeros_like(residual), residual.copy()
    size = (residual**2).sum(axis=0)
    enough = _SOLVER_RESIDUAL**2 * np.maximum(size, 1e-12)
    for _ in range(_SOLVER_STEPS):
        open_ = np.flatnonzero(size > enough)
        if not len(open_):
            break
        along = direction[:, open_]
        image = there[:, open_] * (kernel @ along) + strength[open_] * along
        step = size[open_] / (along * image).sum(axis=0)
        found[:, open_] += step * along
        residual[:, open_] -= step * image
        before, size[open_] = size[open_], (residual[:, open_] ** 2).sum(axis=0)
        direction[:, open_] = residual[:, open_] + along * (size[open_] / before)
    return found.reshape(len(found), len(_STRENGTHS), -1).swapaxes(0, 1), level
