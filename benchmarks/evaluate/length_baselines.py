"""What lengths are compared with: the median of a model on a task, and TF-IDF + ridge for each model.

Ridge gets what it can use: word pairs and signs, on the whole text; penalty and kind of words chosen on an inner
split by group. Its quantiles are its own predictions moved by the quantiles of what it missed on that split, for
each model. All models that answered the same prompts share one decomposition, so this takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.evaluate.picks import text_of
from predictors.training.dataset import Prompt, fraction_of

MEDIAN = "median per model and task"
RIDGE_TOKENS = "TF-IDF + ridge on tokens"
RIDGE_LOG = "TF-IDF + ridge on log length"
PROBABILITIES = (0.5, 0.9)

_PENALTIES = (0.3, 0.5, 1.0, 2.0, 4.0)
#: Words alone, and words, numbers and single signs.
_WORDS = (r"(?u)\b\w\w+\b", r"[^\W\d_]+|\d+|[^\w\s]")
_INNER = 0.2


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
    found: np.ndarray = np.where(answers.capped, np.maximum(-error, 0.0), np.abs(error))
    return found


def baselines(train: Answers, test: Answers, seed: int) -> dict[str, np.ndarray]:
    """By name (answers, len(PROBABILITIES)) predictions in tokens for the test answers."""
    of_tokens, of_log = _ridges(train, test, seed)
    return {MEDIAN: _medians(train, test), RIDGE_TOKENS: of_tokens, RIDGE_LOG: of_log}


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


def _as_it_is(values: np.ndarray) -> np.ndarray:
    return values


@dataclass(frozen=True)
class _Scale:
    """What ridge is fitted to, and the way back."""

    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


_SCALES = (_Scale(_as_it_is, _as_it_is), _Scale(np.log, np.exp))


def _ridges(train: Answers, test: Answers, seed: int) -> list[np.ndarray]:
    """(answers, len(PROBABILITIES)) for each of _SCALES, each with its own best words and penalty."""
    inner = np.array([fraction_of(prompt.group, seed + 500) < _INNER for prompt in train.prompts])[
        train.prompt
    ]
    if not inner.any() or inner.all():
        inner = np.arange(len(inner)) % 5 == 0
    kept, aside = train.part(~inner), train.part(inner)
    tried = {words: _fitted(kept, aside, words, _PENALTIES) for words in _WORDS}
    best = []
    for index, scale in enumerate(_SCALES):
        losses = {
            (words, penalty): float(absolute_errors(aside, scale.back(found[index, column])).mean())
            for words, found in tried.items()
            for column, penalty in enumerate(_PENALTIES)
        }
        best.append(min(losses, key=lambda key: losses[key]))
    again = {
        words: _fitted(train, test, words, _PENALTIES) for words in dict.fromkeys(words for words, _ in best)
    }
    predicted = []
    for index, (scale, (words, penalty)) in enumerate(zip(_SCALES, best, strict=True)):
        column = _PENALTIES.index(penalty)
        missed = scale.to(aside.tokens) - tried[words][index, column]
        upper = {
            model: float(np.quantile(missed[aside.model == model], PROBABILITIES[1]))
            for model in np.unique(aside.model)
        }
        overall = float(np.quantile(missed, PROBABILITIES[1]))
        found = again[words][index, column]
        above = found + np.array([upper.get(model, overall) for model in test.model])
        predicted.append(np.maximum(scale.back(np.stack((found, above), axis=1)), 1.0))
    return predicted


def _fitted(train: Answers, asked: Answers, words: str, penalties: Sequence[float]) -> np.ndarray:
    """(scales, penalties, answers) predictions; a model without answers in training gets the mean of all."""
    used = np.unique(train.prompt)
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2 if len(used) > 100 else 1, sublinear_tf=True, token_pattern=words
    )
    target = np.stack([scale.to(train.tokens) for scale in _SCALES])
    found = np.tile(target.mean(axis=1)[:, None, None], (1, len(penalties), len(asked.tokens)))
    try:
        given = vectorizer.fit_transform([text_of(train.prompts[row]) for row in used])
    except ValueError:  # not one word in all texts
        return found
    wanted = vectorizer.transform([text_of(prompt) for prompt in asked.prompts])
    kernel, cross = (given @ given.T).toarray(), (wanted @ given.T).toarray()
    position = np.searchsorted(used, train.prompt)
    alike: dict[bytes, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    for model in np.unique(train.model):
        own = train.model == model
        rows, inverse, count = np.unique(position[own], return_inverse=True, return_counts=True)
        means = np.stack([np.bincount(inverse, each[own]) / count for each in target])
        alike.setdefault(rows.tobytes(), []).append((rows, means, np.flatnonzero(asked.model == model)))
    for members in alike.values():
        rows = members[0][0]
        values = np.stack([means for _, means, _ in members], axis=2)  # (scales, rows, members)
        level = values.mean(axis=1, keepdims=True)
        roots, vectors = np.linalg.eigh(kernel[np.ix_(rows, rows)])
        turned = vectors.T @ (values - level)
        for column, penalty in enumerate(penalties):
            weights = vectors @ (turned / (roots + penalty)[:, None])
            for place, (_, _, wanted_rows) in enumerate(members):
                near = cross[np.ix_(asked.prompt[wanted_rows], rows)]
                found[:, column, wanted_rows] = weights[:, :, place] @ near.T + level[:, :, place]
    return found
