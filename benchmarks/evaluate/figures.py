"""Measured figures with their uncertainty: what every evaluation consists of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `name` says what ("MAE"), `of` whose ("LSTM", "TF-IDF + ridge on log length", or a difference
    "LSTM - TF-IDF + ridge on log length"), `part` on which part of the data ("all", "family llama"), `unit` ""
    for a share or ratio. `low` and `high` are the 95 % block-bootstrap interval, None where there is none;
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
        """What a JSON report holds; what is no number is null there."""
        found: dict[str, Any] = _finite(asdict(self))
        return found


#: `Figure.part` of all of the data.
WHOLE = "all"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(each) for each in value]
    if isinstance(value, np.generic):
        return _finite(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def pinball(actual: np.ndarray, predicted: np.ndarray, probability: float | np.ndarray) -> np.ndarray:
    """The quantile loss of each value in the unit of `actual`."""
    error = actual - predicted
    return np.asarray(np.maximum(probability * error, (probability - 1.0) * error))
