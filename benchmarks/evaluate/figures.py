"""Measured figures with their uncertainty: what every evaluation consists of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

import numpy as np
import orjson

from predictors.learned.artifact import Artifact
from predictors.learned.models import ArtifactKind
from predictors.training.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `name` is the measure ("MAE"), `of` whose it is ("LSTM", "TF-IDF + ridge on log length", or a difference
    "LSTM - TF-IDF + ridge on log length"), `part` on which part of the data ("all", "family llama"), `unit` ""
    for a share or ratio. `low` and `high` are the 95 % block-bootstrap interval or None;
    `rows` how many answers or requests."""

    name: str
    of: str
    part: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    rows: int = 0

    @property
    def is_difference(self) -> bool:
        """Whether it is of two, `A - B`: such figures lie around 0 and are shown apart."""
        return " - " in self.of

    @property
    def verdict(self) -> str:
        """What a difference shows, by its interval alone, never by its value: "better", "worse", or "no difference shown".
        "" for a figure that is no difference, and for a measure that has no better direction."""
        sign = next((sign for name, sign in _BETTER.items() if self.name.startswith(name)), 0)
        if not self.is_difference or not sign:
            return ""
        low, high = (math.nan if end is None else sign * end for end in (self.low, self.high))
        if min(low, high) > 0:
            return "better"
        return "worse" if max(low, high) < 0 else "no difference shown"


#: By the beginning of a measure's name: 1 where more of it is better, -1 where less is.
_BETTER = {
    "MAE": -1, "pinball loss": -1, "median relative error": -1, "Brier": -1, "ECE": -1, "log error": -1,
    "Spearman": 1, "AUC": 1, "mean quality": 1, "share of the gap": 1, "APGR": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a plot. `title` names the plot, `of` the line in it; a plot has all curves with its title. Points
    that are `scattered` are not joined by a line."""

    title: str
    of: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All figures of an artifact on a data set. `notes` are sentences for the reader."""

    kind: str
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def headline(self) -> tuple[Figure, ...]:
        """The figures over all of the data; where no part is called so, those of the largest parts: not of
        a part's part, "source, level"."""
        return tuple(each for each in self.figures if each.part == WHOLE) or tuple(
            each for each in self.figures if ", " not in each.part
        )

    def as_dict(self) -> dict[str, Any]:
        """What a JSON report holds; what is no number is null there. A difference has its verdict."""
        found: dict[str, Any] = orjson.loads(
            orjson.dumps(self, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        )
        for shown, figure in zip(found["figures"], self.figures, strict=True):
            if figure.verdict:
                shown["verdict"] = figure.verdict
        return found


#: `Figure.part` of all of the data.
WHOLE = "all"


class Evaluate(Protocol):
    """`train` is what the baselines are fitted on (None: no baselines). Raises DatasetError for data that show
    nothing."""

    def __call__(
        self, artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int
    ) -> Evaluation: ...


def evaluator(kind: ArtifactKind) -> Evaluate:
    """What evaluates this kind (`predictors.learned.models.KINDS`): the module of its name, imported when it is first needed, so
    that one kind does not wait for what another one imports. A kind without such a module has no figures."""
    module = f"benchmarks.evaluate.{kind.training}"
    return _no_figures if find_spec(module) is None else cast(Evaluate, import_module(module).evaluate)


def _no_figures(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int) -> Evaluation:
    return Evaluation(artifact.kind, notes=(f"Nothing evaluates {artifact.kind} artifacts.",))


def block_bootstrap(
    blocks: Sequence[Any] | np.ndarray,
    statistic: Callable[[np.ndarray], float],
    *,
    resamples: int = 1000,
    seed: int = 1,
) -> tuple[float, float, float]:
    """(value, low, high) of `statistic`, which takes row indices (with repeats), over resamples of whole
    blocks with replacement; `blocks` names each row's block. The interval leaves out resamples for which the
    statistic is NaN, and is NaN where all are. A ValueError without rows."""
    if not len(blocks):
        raise ValueError("no rows to take a figure of")
    _, inverse = np.unique(np.asarray(blocks), return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
    rng = np.random.default_rng(seed)
    found = [
        statistic(np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))]))
        for _ in range(resamples)
    ]
    known = [each for each in found if not math.isnan(each)]
    low, high = np.quantile(known, (0.025, 0.975)) if known else (math.nan, math.nan)
    return float(statistic(np.arange(len(inverse)))), float(low), float(high)


class Resampled:
    """How often each resample of whole groups (with replacement) has each group. Row 0 of `draws` (1 + resamples,
    groups) is the data as they are; `group` is the place of each row's group."""

    def __init__(self, groups: np.ndarray, resamples: int = 1000, seed: int = 1) -> None:
        names, self.group = np.unique(groups, return_inverse=True)
        chances = np.full(len(names), 1 / len(names))
        drawn = np.random.default_rng(seed).multinomial(len(names), chances, resamples)
        self.draws = np.vstack((np.ones(len(names)), drawn))

    def ratio(self, above: np.ndarray, below: np.ndarray) -> np.ndarray:
        """(1 + resamples,): sum over sum of two values of each row, NaN where the lower sum is not above 0."""
        size = self.draws.shape[1]
        over, under = (self.draws @ np.bincount(self.group, each, size) for each in (above, below))
        return np.asarray(np.divide(over, under, out=np.full_like(over, np.nan), where=under > 0))

    def means(self, values: np.ndarray) -> np.ndarray:
        """(1 + resamples,)."""
        return self.ratio(values, np.ones(len(values)))


def share_up_to(
    bounds: Sequence[float], values: np.ndarray, cut: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """(bounds,): the share of rows whose value is at most each bound, where a `cut` row would have had this value or a larger
    one (Kaplan-Meier). NaN for a bound above which no row is seen. Where rows are cut must not depend on their values."""
    order = np.lexsort((cut, values))
    values, weights = values[order], weights[order]
    left = np.cumsum(weights[::-1])[::-1]
    ended = np.where(cut[order], 0.0, weights) / np.maximum(left, 1e-12)
    survived = np.concatenate(((1.0,), np.cumprod(1.0 - ended)))
    at = np.searchsorted(values, bounds, side="right")
    unseen = (np.append(left, 0.0)[at] <= 0) & (survived[at] > 1e-9)
    return np.where(unseen, np.nan, 1.0 - survived[at])


def resampled_figure(
    name: str,
    of: str,
    part: str,
    blocks: Sequence[Any] | np.ndarray,
    statistic: Callable[[np.ndarray], float],
    *,
    resamples: int = 1000,
    seed: int = 1,
) -> Figure:
    """The figure of a `statistic` with its interval (`block_bootstrap`)."""
    value, low, high = block_bootstrap(blocks, statistic, resamples=resamples, seed=seed)
    return Figure(name, of, part, value, "", low, high, len(blocks))


def soft_auc(quality: np.ndarray, predicted: np.ndarray) -> float:
    """Probability that a good answer is ranked above a bad one, ties half; NaN where there is only one kind."""
    return Ranked(quality, predicted).auc(np.ones(len(quality)))


class Ranked:
    """Rows in order of their prediction, sorted once for all resamples."""

    def __init__(self, quality: np.ndarray, predicted: np.ndarray) -> None:
        self._order = np.argsort(predicted, kind="stable")
        ranked = predicted[self._order]
        self._starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
        self._quality = quality[self._order]

    def auc(self, weights: np.ndarray) -> float:
        ordered = weights[self._order]
        good = np.add.reduceat(ordered * self._quality, self._starts)
        bad = np.add.reduceat(ordered * (1.0 - self._quality), self._starts)
        below = np.cumsum(bad) - bad
        pairs = good.sum() * bad.sum()
        return float((good * (below + bad / 2)).sum() / pairs) if pairs > 0 else float("nan")


def equal_bins(values: np.ndarray) -> list[np.ndarray]:
    """The rows in order of their values, in ten bins of equal size, without those that are empty."""
    return [part for part in np.array_split(np.argsort(values, kind="stable"), 10) if len(part)]


def pinball(actual: np.ndarray, predicted: np.ndarray, probability: float | np.ndarray) -> np.ndarray:
    """The quantile loss of each value in the unit of `actual`."""
    error = actual - predicted
    return np.asarray(np.maximum(probability * error, (probability - 1.0) * error))
