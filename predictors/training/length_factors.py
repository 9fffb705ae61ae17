"""Factors of prompts: functions of their counts and of the words and pairs that occur, fitted in closed form.

Reduced-rank ridge regression (Mukherjee and Zhu, 2011). The log lengths form a table of prompts by models with holes.
An additive fit (model + prompt) fills the holes. Ridge regression to all models at once gives fitted values. The directions in
which those vary most are what a prompt shows about lengths: the first is how long answers are at all, the others how models
differ. Lengths of different models are strongly correlated. So a few directions are enough, and a model with few answers gains
from all others.

The regression is linear in TF-IDF, and in random features of the counts: tanh of random sums (Rahimi and Recht, 2008, "Weighted
sums of random kitchen sinks"), because answers do not grow in proportion to anything that can be counted.

A network must see factors with the same errors in training as in serving. So for the training prompts, the factors come
from fits without their own part of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from predictors.kernels.reference.length_network import GRAMS, grams_of
from predictors.training.dataset import fraction_of
from router.core.types import PromptFeatures

#: A word or pair must occur in so many prompts.
LEAST_PROMPTS_WITH = 2
_PENALTY = 1.0
#: The standard deviation of the weights of standardised counts in a random sum, and the squared norm of all random features of a
#: prompt at most, where that of its TF-IDF is 1.
_RANDOM_WEIGHT, _RANDOM_SHARE = 0.12, 5.0
_PARTS = 6
_FILL_ROUNDS = 20
_SOLVER_STEPS = 100
_SOLVER_RESIDUAL = 1e-5


def fit_factors(
    prompts: Sequence[PromptFeatures],
    counts: np.ndarray,
    groups: Sequence[str],
    lengths: tuple[np.ndarray, np.ndarray, np.ndarray],
    models: int,
    rank: int,
    random_features: int,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """(arrays by their names in the artifact, how many prompts have each known gram, the factors (prompts, rank) of the prompts,
    each from a fit without it). `counts` (prompts, counts) are `Vocabulary.counts` of the prompts. `lengths` are (prompt, model,
    log tokens) of each answer; near copies share a group. The last factors are 0 where the data are too few for so many.

    A row of `gram_table` is what an occurrence of a gram adds to each factor, and to the squared norm; row 0 is zero. To this
    comes tanh(counts @ `random_weight` + `random_bias`) @ `random_table`."""
    grams, prompts_with, words = _tf_idf(prompts)
    weights = _inverse_frequencies(prompts_with, len(prompts))
    random_weight, random_bias = _random_sums(counts, random_features)
    by = np.sqrt(_RANDOM_SHARE / random_features)
    inputs = sparse.csr_array(sparse.hstack((words, by * np.tanh(counts @ random_weight + random_bias))))
    target = _filled(*lengths, len(prompts), models)
    target -= target.mean(axis=0)
    fitted = inputs @ (inputs.T @ _solve(inputs, target))
    _, directions = np.linalg.eigh(fitted.T @ fitted)
    wanted = target @ directions[:, ::-1][:, :rank]
    wanted = np.pad(wanted, ((0, 0), (0, rank - wanted.shape[1])))
    part = np.array([int(fraction_of(group, _PARTS) * _PARTS) for group in groups])
    of_prompts = np.zeros_like(wanted)
    for each in np.unique(part):
        out = part == each
        known = inputs[~out]
        if known.shape[0]:
            of_prompts[out] = inputs[out] @ (known.T @ _solve(known, wanted[~out]))
    found = inputs.T @ _solve(inputs, wanted)
    table = np.zeros((len(grams) + 1, rank + 1))
    table[1:, :-1] = weights[:, None] * found[: len(grams)]
    table[1:, -1] = weights**2
    arrays = {
        "grams": grams,
        "gram_table": table,
        "random_weight": random_weight,
        "random_bias": random_bias,
        "random_table": by * found[len(grams) :],
    }
    return arrays, prompts_with, of_prompts


def _random_sums(counts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(weights (counts, size), biases (size,)) of random sums of standardised counts, to be applied to counts as they are."""
    rng = np.random.default_rng(0)
    mean, scale = standards(counts)
    weight = scale[:, None] * rng.normal(scale=_RANDOM_WEIGHT, size=(counts.shape[1], size))
    return weight, rng.normal(size=size) - mean @ weight


def standards(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means, 1 / standard deviations) of columns; 0 in place of the second for a column of equal values."""
    deviation = values.std(axis=0)
    return values.mean(axis=0), np.where(deviation > 1e-9, 1.0 / np.maximum(deviation, 1e-9), 0.0)


def _inverse_frequencies(prompts_with: np.ndarray, prompts: int) -> np.ndarray:
    found: np.ndarray = np.log((1 + prompts) / (1 + prompts_with)) + 1.0
    return found


def _tf_idf(prompts: Sequence[PromptFeatures]) -> tuple[np.ndarray, np.ndarray, sparse.csr_array]:
    """(known ids, number of prompts with each, prompts x ids with rows of norm 1)."""
    occurring = [np.unique(grams_of(each)) for each in prompts]
    prompts_with = np.bincount(np.concatenate(occurring), minlength=GRAMS)
    grams = np.flatnonzero(prompts_with >= LEAST_PROMPTS_WITH)
    weights = _inverse_frequencies(prompts_with[grams], len(prompts))
    rows = np.repeat(np.arange(len(prompts)), [len(each) for each in occurring])
    ids = np.concatenate(occurring)
    kept = prompts_with[ids] >= LEAST_PROMPTS_WITH
    columns = np.searchsorted(grams, ids[kept])
    table = sparse.csr_array((weights[columns], (rows[kept], columns)), shape=(len(prompts), len(grams)))
    norms = np.sqrt(table.power(2).sum(axis=1))
    unit = sparse.csr_array(table.multiply(1.0 / np.maximum(norms, 1e-12)[:, None]))
    return grams, prompts_with[grams], unit


def _filled(prompt: np.ndarray, model: np.ndarray, value: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """(rows, columns) means of the values minus the model's level. Holes get the prompt's level."""
    count, total = np.zeros((rows, columns)), np.zeros((rows, columns))
    np.add.at(count, (prompt, model), 1.0)
    np.add.at(total, (prompt, model), value)
    there = count > 0
    mean = total / np.maximum(count, 1.0)
    of_row = np.zeros(rows)
    for _ in range(_FILL_ROUNDS):
        of_column = np.where(there, mean - of_row[:, None], 0.0).sum(axis=0) / np.maximum(
            there.sum(axis=0), 1
        )
        of_row = np.where(there, mean - of_column, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        of_row -= of_row.mean()
    return np.where(there, mean - of_column, of_row[:, None])


def _solve(inputs: sparse.csr_array, target: np.ndarray) -> np.ndarray:
    """X of (inputs inputs' + penalty) X = target by conjugate gradients, all columns at once."""
    found = np.zeros_like(target)
    residual = target.copy()
    direction = residual.copy()
    size = (residual**2).sum(axis=0)
    enough = _SOLVER_RESIDUAL**2 * np.maximum(size, 1e-12)
    for _ in range(_SOLVER_STEPS):
        if (size <= enough).all():
            break
        image = inputs @ (inputs.T @ direction) + _PENALTY * direction
        step = size / np.maximum((direction * image).sum(axis=0), 1e-300)
        found += step * direction
        residual -= step * image
        before, size = size, (residual**2).sum(axis=0)
        direction = residual + direction * (size / np.maximum(before, 1e-300))
    return found
