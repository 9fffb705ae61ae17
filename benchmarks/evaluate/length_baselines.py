"""What lengths are compared with: the median of a model on a task, and the yardstick, TF-IDF + ridge.

The yardstick is word 1-2-grams with sublinear TF-IDF on the whole text, where a sign counts as a word, and for each model
a ridge on log lengths, whose strength is chosen on folds of whole groups of the training prompts. Its 90 % quantile is its
prediction moved by the quantile of what it missed on those folds, for each model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge

from benchmarks.evaluate.picks import text_of
from predictors.training.dataset import Prompt, fraction_of

MEDIAN = "median per model and task"
YARDSTICK = "TF-IDF + ridge on log length"
PROBABILITIES = (0.5, 0.9)

#: Words, numbers and single signs: on ZeroEval's prompts this was stronger than words alone.
_WORDS = r"\w+|[^\w\s]"
_STRENGTHS = np.array([0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0])
_FOLDS = 5
_RESIDUAL = 1e-5


@dataclass(frozen=True)
class Answers:
    """Answers as arrays: index of the prompt, key of the model and its family ("" for none), tokens, whether cut there."""

    prompts: tuple[Prompt, ...]
    prompt: np.ndarray
    model: np.ndarray
    family: np.ndarray
    tokens: np.ndarray
    capped: np.ndarray

    def part(self, rows: np.ndarray) -> Answers:
        """Some of the answers, of the same prompts."""
        columns = self.prompt, self.model, self.family, self.tokens, self.capped
        return Answers(self.prompts, *(each[rows] for each in columns))

    def of_prompts(self, name: str) -> np.ndarray:
        """What each answer's prompt has under this name."""
        return np.asarray(np.array([getattr(each, name) for each in self.prompts])[self.prompt])


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
    tokens: defaultdict[object, list[float]] = defaultdict(list)
    for keys, length in zip(_keys(train), train.tokens, strict=True):
        for key in keys:
            tokens[key].append(length)
    known = {key: np.quantile(values, PROBABILITIES) for key, values in tokens.items()}
    return np.array([next(known[key] for key in keys if key in known) for keys in _keys(test)])


def _keys(answers: Answers) -> Iterator[tuple[object, ...]]:
    """What an answer is one of, the narrowest first: its model's to its task, its model's, and all."""
    tasks = [task_of(prompt) for prompt in answers.prompts]
    for model, prompt in zip(answers.model, answers.prompt, strict=True):
        yield (model, tasks[prompt]), model, None


def _ridge(train: Answers, test: Answers, seed: int) -> np.ndarray:
    """(answers, len(PROBABILITIES))."""
    used, position = np.unique(train.prompt, return_inverse=True)
    given, wanted = _words(train, used, test)
    fold = np.array([int(fraction_of(train.prompts[row].group, seed + 500) * _FOLDS) for row in used])
    logs = np.log(train.tokens)
    # A model without answers in training gets the mean of all.
    middle, above = np.full((2, len(test.tokens)), np.nan)
    every: list[np.ndarray] = []
    for model in np.unique(train.model):
        rows = train.model == model
        prompts, place = np.unique(position[rows], return_inverse=True)
        value = np.bincount(place, logs[rows]) / np.bincount(place)
        fitted = np.full((len(prompts), len(_STRENGTHS)), logs.mean())
        for each in np.unique(fold[prompts]):
            out = fold[prompts] == each
            if not out.all():
                fitted[out] = _predicted(given[prompts[~out]], value[~out], _STRENGTHS, given[prompts[out]])
        missed = logs[rows, None] - fitted[place]
        best = int((missed**2).sum(axis=0).argmin())
        every.append(missed[:, best])
        asked = test.model == model
        middle[asked] = _predicted(given[prompts], value, _STRENGTHS[[best]], wanted)[test.prompt[asked], 0]
        above[asked] = np.quantile(every[-1], PROBABILITIES[1])
    middle = np.nan_to_num(middle, nan=logs.mean())
    above = np.nan_to_num(above, nan=np.quantile(np.concatenate(every), PROBABILITIES[1]))
    return np.asarray(np.maximum(np.exp(np.stack((middle, middle + above), axis=1)), 1.0))


def _words(train: Answers, used: np.ndarray, test: Answers) -> tuple[Any, Any]:
    """TF-IDF rows: of the training prompts that are `used`, and of all prompts of the test."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORDS)
    try:
        given = vectorizer.fit_transform([text_of(train.prompts[row]) for row in used])
    except ValueError:  # not one word in all texts
        return csr_array((len(used), 1)), csr_array((len(test.prompts), 1))
    return given, vectorizer.transform([text_of(prompt) for prompt in test.prompts])


def _predicted(given: Any, value: np.ndarray, strengths: np.ndarray, wanted: Any) -> np.ndarray:
    """(wanted, strengths): by a ridge of each strength around the mean."""
    level = value.mean()
    ridge = Ridge(alpha=strengths, fit_intercept=False, solver="sparse_cg", tol=_RESIDUAL)
    ridge.fit(given, np.tile(value[:, None] - level, len(strengths)))
    return np.asarray(ridge.predict(wanted).reshape(-1, len(strengths)) + level)
