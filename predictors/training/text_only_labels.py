"""Qualities and lengths as tables of prompts by models, each split into a part of the model and a part of the prompt."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from predictors.learned.names import model_key
from predictors.training.dataset import Dataset, DatasetError, Prompt
from predictors.training.relevance_labels import CORRECTNESS, MIN_GROUPS

_ROUNDS = 40
#: How strongly levels of prompts are held at 0: one answer shows little about a prompt.
_LEVEL_RIDGE = 1.0
_EFFECT_RIDGE = 0.1
#: Answers that a prompt needs, before its level is used to guess the other models' answers.
_TELLING = 5
#: The weight of such a guess beside an answer.
_GUESS = 0.2


@dataclass(frozen=True)
class Tables:
    """`quality` and `log_tokens` are (P, H), NaN where there is no answer. `heads` are the models' keys."""

    prompts: tuple[Prompt, ...]
    heads: tuple[str, ...]
    quality: np.ndarray
    log_tokens: np.ndarray


@dataclass(frozen=True)
class Additive:
    """effect of the model (H,) + level of the prompt (P,), levels 0 on average. `spread` (H,) is half the variance of
    the rest."""

    effects: np.ndarray
    levels: np.ndarray
    spread: np.ndarray

    @property
    def chances(self) -> np.ndarray:
        """(P, H) of good answers, where both parts are log-odds."""
        return np.asarray(1.0 / (1.0 + np.exp(-(self.effects + self.levels[:, None]))))


def tables_of(data: Dataset) -> Tables:
    """Of one kind of quality: correctness where there is any, else the most frequent kind. Raises DatasetError for data
    without quality, or with too little of it."""
    kinds = Counter(answer.quality_kind or "" for answer in data.answers if answer.quality is not None)
    wanted = set(CORRECTNESS) & set(kinds) or {kind for kind, _ in kinds.most_common(1)}
    prompts = {prompt.id: prompt for prompt in data.prompts}
    quality: dict[tuple[str, str], list[float]] = {}
    tokens: dict[tuple[str, str], list[float]] = {}
    for answer in data.answers:
        cell = answer.prompt, model_key(answer.model)
        if answer.quality is not None and (answer.quality_kind or "") in wanted:
            quality.setdefault(cell, []).append(answer.quality)
            if answer.output_tokens:
                tokens.setdefault(cell, []).append(float(np.log(answer.output_tokens)))
    rated = {prompt for prompt, _ in quality}
    groups = {prompts[prompt].group for prompt in rated}
    if len(groups) < MIN_GROUPS:
        raise DatasetError(
            f"{len(groups)} groups of prompts with rated answers: text-only estimators need {MIN_GROUPS} at least"
        )
    heads = tuple(sorted({head for _, head in quality}))
    kept = tuple(prompt for prompt in prompts.values() if prompt.id in rated)
    row = {prompt.id: at for at, prompt in enumerate(kept)}
    column = {head: at for at, head in enumerate(heads)}
    found = []
    for cells in (quality, tokens):
        table = np.full((len(kept), len(heads)), np.nan)
        for (prompt, head), values in cells.items():
            table[row[prompt], column[head]] = np.mean(values)
        found.append(table)
    return Tables(kept, heads, found[0], found[1])


def quality_effects(quality: np.ndarray) -> Additive:
    """In log-odds, by alternating Newton steps (a Rasch model with soft labels)."""
    there = ~np.isnan(quality)
    actual = np.nan_to_num(quality)
    effects, levels = np.zeros(quality.shape[1]), np.zeros(len(quality))
    for _ in range(_ROUNDS):
        for axis in (0, 1):
            chance = 1.0 / (1.0 + np.exp(-(effects + levels[:, None])))
            slope = (there * (actual - chance)).sum(axis=axis)
            bend = (there * chance * (1.0 - chance)).sum(axis=axis)
            if axis == 0:
                effects = effects + (slope - _EFFECT_RIDGE * effects) / (bend + _EFFECT_RIDGE)
            else:
                levels = levels + (slope - _LEVEL_RIDGE * levels) / (bend + _LEVEL_RIDGE)
        effects, levels = effects + levels.mean(), levels - levels.mean()
    return Additive(effects, levels, np.zeros_like(effects))


def length_effects(log_tokens: np.ndarray) -> Additive:
    """In logarithms of tokens, by alternating least squares. Effects of models without lengths are NaN."""
    there = ~np.isnan(log_tokens)
    known = there.any(axis=0)
    total = np.nan_to_num(log_tokens)
    effects, levels = np.zeros(log_tokens.shape[1]), np.zeros(len(log_tokens))
    for _ in range(_ROUNDS):
        effects = (total - there * levels[:, None]).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        levels = (total - there * effects).sum(axis=1) / (there.sum(axis=1) + _LEVEL_RIDGE)
        if there.any():
            levels = np.where(there.any(axis=1), levels - levels[there.any(axis=1)].mean(), 0.0)
    left = np.where(there, log_tokens - effects - levels[:, None], 0.0)
    spread = (left**2).sum(axis=0) / np.maximum(there.sum(axis=0), 1) / 2.0
    return Additive(np.where(known, effects, np.nan), levels, np.where(known, spread, 0.0))


def filled(quality: np.ndarray, additive: Additive) -> tuple[np.ndarray, np.ndarray]:
    """(quality, weight), both (P, H). Where a prompt has several models' answers, the others are guessed from its level
    at a small weight, so that a model that was seen on one task only does not extrapolate."""
    there = ~np.isnan(quality)
    telling = there.sum(axis=1, keepdims=True) >= _TELLING
    weight = np.where(there, 1.0, np.where(telling, _GUESS, 0.0))
    return np.where(there, np.nan_to_num(quality), additive.chances), weight
