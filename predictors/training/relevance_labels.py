"""Qualities of answers as one table: prompts by heads (a model as measured on one scale)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from predictors.learned.names import model_key
from predictors.learned.relevance import exact_name
from predictors.training.dataset import Dataset, DatasetError, Prompt

#: Groups of near copies with rated answers that training needs.
MIN_GROUPS = 40
#: Every mean is drawn towards the mean of all, which counts as so many answers.
_PRIOR_ROWS = 2.0
#: Kinds of quality that are shares of correct answers, and so are comparable across sources.
CORRECTNESS = ("correct", "score")


@dataclass(frozen=True)
class Labels:
    """`quality` (P, H) is NaN where a model did not answer; several answers of one head are averaged. `scales` are
    "source/kind", `head_scale` is the index of each head's scale."""

    prompts: tuple[Prompt, ...]
    quality: np.ndarray
    heads: tuple[str, ...]
    head_scale: np.ndarray
    scales: tuple[str, ...]

    @property
    def groups(self) -> np.ndarray:
        return np.array([prompt.group for prompt in self.prompts])

    def heads_on(self, scale: int) -> np.ndarray:
        """Indices of the heads of a scale."""
        return np.flatnonzero(self.head_scale == scale)


def labels_of(data: Dataset, least_groups: int = MIN_GROUPS) -> Labels:
    """Raises DatasetError where there is no quality, too little of it, or the same everywhere."""
    prompts = {prompt.id: prompt for prompt in data.prompts}
    sums: dict[tuple[str, str, str], tuple[float, int]] = {}
    for answer in data.answers:
        quality = answer.quality
        if quality is None:
            continue
        scale = f"{prompts[answer.prompt].source}/{answer.quality_kind or 'quality'}"
        key = (scale, exact_name(answer.model), answer.prompt)
        total, count = sums.get(key, (0.0, 0))
        sums[key] = (total + quality, count + 1)
    if not sums:
        raise DatasetError("no answer in the data has a quality: there is nothing to learn relevance from")
    rated = {prompt for _, _, prompt in sums}
    groups = len({prompts[prompt].group for prompt in rated})
    if groups < least_groups:
        raise DatasetError(
            f"only {groups} groups of prompts with rated answers: relevance needs {least_groups} at least"
        )
    scales = sorted({scale for scale, _, _ in sums})
    heads = sorted({(scales.index(scale), model) for scale, model, _ in sums})
    kept = tuple(prompt for prompt in prompts.values() if prompt.id in rated)
    row = {prompt.id: index for index, prompt in enumerate(kept)}
    column = {head: index for index, head in enumerate(heads)}
    table = np.full((len(kept), len(heads)), np.nan, dtype=np.float32)
    for (scale, model, prompt), (total, count) in sums.items():
        table[row[prompt], column[scales.index(scale), model]] = total / count
    if np.nanmax(table) - np.nanmin(table) < 1e-6:
        raise DatasetError("every answer has the same quality: there is nothing to learn relevance from")
    return Labels(
        kept,
        table,
        tuple(model for _, model in heads),
        np.array([scale for scale, _ in heads], dtype=np.int64),
        tuple(scales),
    )


def priors(quality: np.ndarray) -> np.ndarray:
    """(H,) log-odds of each head's mean over all prompts."""
    count = (~np.isnan(quality)).sum(axis=0)
    mean = (np.nansum(quality, axis=0) + 0.5 * _PRIOR_ROWS) / (count + _PRIOR_ROWS)
    return np.asarray(np.log(mean / (1.0 - mean)), dtype=np.float32)


def scale_shifts(labels: Labels, prior: np.ndarray) -> np.ndarray:
    """(S,) log-odds to add to each scale, to convert it to that of correct answers: from models measured on both, drawn
    towards the difference of the means of all."""
    correct = np.array([scale.rsplit("/", 1)[1] in CORRECTNESS for scale in labels.scales])
    shifts = np.zeros(len(labels.scales), dtype=np.float32)
    if not correct.any():
        correct[Counter(labels.head_scale.tolist()).most_common(1)[0][0]] = True
    base = np.flatnonzero(correct[labels.head_scale])
    keys = np.array([model_key(name) for name in labels.heads])
    for scale in np.flatnonzero(~correct):
        heads = labels.heads_on(int(scale))
        differences = [
            float(prior[base[keys[base] == keys[head]]].mean() - prior[head])
            for head in heads
            if keys[head] in keys[base]
        ]
        differences.append(float(prior[base].mean() - prior[heads].mean()))
        shifts[scale] = np.mean(differences)
    return shifts
