"""What evaluations on prompts share: parts that are apart, what an artifact knows, and the models that are picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluate.figures import Figure, resampled_figure
from predictors.training.dataset import Dataset, DatasetError, Prompt
from predictors.training.relevance_labels import Labels

BEST_SINGLE = "best single model"
BEST_PER_TASK = "best model per task"


def check_apart(test: Dataset, train: Dataset | None) -> None:
    """Raises DatasetError for prompts of `test` that have near copies in `train`."""
    if train is not None:
        shared = {each.group for each in train.prompts} & {each.group for each in test.prompts}
        if shared:
            raise DatasetError(
                f"{len(shared)} groups of prompts are in the training part and in the test part (one is "
                f"{min(shared)}): split by group"
            )


@dataclass(frozen=True)
class OfPrompts:
    """What is known of each of some prompts."""

    prompts: Sequence[Prompt]

    @property
    def groups(self) -> np.ndarray:
        return np.array([prompt.group for prompt in self.prompts])

    @property
    def tasks(self) -> np.ndarray:
        return np.array([prompt.task or "" for prompt in self.prompts])


@dataclass(frozen=True)
class Rated(OfPrompts):
    """One scale ("source/kind") of the test part: the models that an artifact knows, and the prompts that at least one of
    them answered. `quality` (P, M) is NaN where there is no answer."""

    name: str
    models: tuple[str, ...]
    quality: np.ndarray


def known_parts(labels: Labels, knows: Callable[[str], bool]) -> list[Rated]:
    """What an artifact `knows` of each scale. Raises DatasetError if that is nothing."""
    found = []
    for scale, name in enumerate(labels.scales):
        heads = np.array([head for head in labels.heads_on(scale) if knows(labels.heads[head])], dtype=int)
        rows = np.flatnonzero((~np.isnan(labels.quality[:, heads])).any(axis=1))
        if len(rows):
            quality = labels.quality[np.ix_(rows, heads)].astype(float)
            models = tuple(labels.heads[head] for head in heads)
            found.append(Rated([labels.prompts[row] for row in rows], name, models, quality))
    if not found:
        raise DatasetError("the artifact knows none of the models in the test data")
    return found


def on_scale(labels: Labels, scale: str, models: Sequence[str]) -> np.ndarray:
    """(P, M) qualities of these models on this scale; NaN where there is none."""
    table = np.full((len(labels.prompts), len(models)), np.nan)
    if scale in labels.scales:
        of_model = {labels.heads[head]: head for head in labels.heads_on(labels.scales.index(scale))}
        for column, model in enumerate(models):
            if model in of_model:
                table[:, column] = labels.quality[:, of_model[model]]
    return table


def picked(quality: np.ndarray, score: np.ndarray) -> np.ndarray:
    """(P,) quality of the model with the best score that answered; of equal ones the first."""
    best = np.where(~np.isnan(quality), np.nan_to_num(score, nan=-1.0), -np.inf).argmax(axis=1)
    return np.asarray(quality[np.arange(len(quality)), best])


def picked_by_means(
    quality: np.ndarray, tasks: np.ndarray, train: Labels, scale: str, models: Sequence[str]
) -> dict[str, np.ndarray]:
    """(P,) quality of the model that was best in training, overall and by each prompt's task. A model without answers
    to a task counts with its overall mean."""
    table = on_scale(train, scale, models)
    known = np.array([prompt.task or "" for prompt in train.prompts])
    rated = (~np.isnan(table)).any(axis=1)

    def mean(rows: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        count = (~np.isnan(table[rows])).sum(axis=0)
        return np.where(count > 0, np.nansum(table[rows], axis=0) / np.maximum(count, 1), otherwise)

    overall = mean(rated, np.zeros(len(models)))
    by_task = {task: mean(rated & (known == task), overall) for task in np.unique(known[rated]).tolist()}
    return {
        BEST_SINGLE: picked(quality, np.broadcast_to(overall, quality.shape)),
        BEST_PER_TASK: picked(quality, np.stack([by_task.get(task, overall) for task in tasks])),
    }


def pick_figures(
    rated: Rated,
    scores: Mapping[str, np.ndarray],
    train: Labels | None,
    *,
    minus: Mapping[str, Sequence[str]],
    least: int,
    resamples: int,
    seed: int,
) -> list[Figure]:
    """Mean quality of what `scores` (P, M) pick, of the models that were best in training, of random picks and of an oracle,
    then the shares of the gap between those two, also of one less each of others (`minus`, by its name). They are of the
    prompts that at least two of the models have answered; nothing where these are fewer than `least`."""
    several = (~np.isnan(rated.quality)).sum(axis=1) > 1
    if several.sum() < least:
        return []
    part, quality, groups = rated.name, rated.quality[several], rated.groups[several]
    found = {who: picked(quality, score[several]) for who, score in scores.items()}
    if train is not None:
        found |= picked_by_means(quality, rated.tasks[several], train, part, rated.models)
    random, best = np.nanmean(quality, axis=1), np.nanmax(quality, axis=1)
    means = {"random model": random, **found, "oracle": best}
    figures = [
        Figure("mean quality", who, part, float(got.mean()), rows=len(quality)) for who, got in means.items()
    ]
    if best.mean() - random.mean() < 1e-9:
        return figures
    above = {who: got - random for who, got in found.items()} | {
        f"{who} - {other}": found[who] - found[other]
        for who in minus
        for other in minus[who]
        if other in found
    }

    def share_of(above: np.ndarray) -> Callable[[np.ndarray], float]:
        def share(rows: np.ndarray) -> float:
            gap = best[rows].mean() - random[rows].mean()
            return float(above[rows].mean() / gap) if gap > 0 else float("nan")

        return share

    name = "share of the gap"
    return figures + [
        resampled_figure(name, of, part, groups, share_of(values), resamples=resamples, seed=seed)
        for of, values in above.items()
    ]


def text_of(prompt: Prompt) -> str:
    """What a TF-IDF baseline reads: the text, or for a prompt that only kept features the ids of its words, as words."""
    if prompt.text is not None:
        return prompt.text
    return " ".join(f"w{word}" for word in (*prompt.features.head, *prompt.features.tail))
