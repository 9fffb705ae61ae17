"""What a picker reached: quality, spend, saving, and its place between the best single model and the oracle.

A prompt counts once in every order it was replayed in; intervals resample whole groups of prompts. The saving is
1 - spend / spend of always taking the best single model of the training prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluate.figures import Resampled
from benchmarks.oracles.quality_cost import mean_frontier
from benchmarks.pickers.cases import Table
from policies.lower_hull import lower_hull


@dataclass(frozen=True, slots=True)
class PickerResult:
    """Of each prompt the mean over the orders of what a picker's answers were worth and cost; both (P,)."""

    quality: np.ndarray
    cost_usd: np.ndarray

    @property
    def point(self) -> tuple[float, float]:
        """(mean quality, mean cost)."""
        return float(self.quality.mean()), float(self.cost_usd.mean())


def result_of(
    table: Table, picks: Sequence[np.ndarray], more_usd: Sequence[np.ndarray] | None = None
) -> PickerResult:
    """What picks (P,) in several orders brought. `more_usd` (P,) was spent beside them in each order."""
    rows = np.arange(len(table.prompts))
    return PickerResult(
        np.mean([table.quality[rows, each] for each in picks], axis=0),
        np.mean([table.cost_usd[rows, each] for each in picks], axis=0)
        + (0.0 if more_usd is None else np.mean(more_usd, axis=0)),
    )


def joined(parts: Sequence[PickerResult]) -> PickerResult:
    """Several folds as one."""
    return PickerResult(
        np.concatenate([part.quality for part in parts]), np.concatenate([part.cost_usd for part in parts])
    )


def interval(found: np.ndarray) -> list[float]:
    """[value, low, high] with 95 % between low and high."""
    low, high = np.nanquantile(found[1:], (0.025, 0.975))
    return [float(found[0]), float(low), float(high)]


def savings(resampled: Resampled, ours: PickerResult, best: PickerResult) -> np.ndarray:
    """In each resample, against the best single model."""
    return np.asarray(1.0 - resampled.means(ours.cost_usd) / resampled.means(best.cost_usd))


def summary(resampled: Resampled, ours: PickerResult, best: PickerResult) -> dict[str, list[float]]:
    """Mean quality, what it is above the best single model's, and the saving; each with its interval."""
    quality = resampled.means(ours.quality)
    return {
        "quality": interval(quality),
        "above_best_single": interval(quality - resampled.means(best.quality)),
        "saving": interval(savings(resampled, ours, best)),
    }


def verdict(difference: Sequence[float]) -> str:
    """What an interval [value, low, high] of "ours - theirs" shows: the value alone shows nothing."""
    _, low, high = difference
    if low > 0.0:
        return "more"
    return "less" if high < 0.0 else "no difference shown"


# --- frontiers ------------------------------------------------------------------------------------------
Points = Sequence[tuple[float, float]]  # (mean quality, mean cost)


def true_frontier(quality: np.ndarray, cost: np.ndarray) -> list[tuple[float, float]]:
    """The least mean cost of every mean quality with the truth known; both (prompts, models)."""
    return mean_frontier(
        [list(zip(row, usd, strict=True)) for row, usd in zip(quality.tolist(), cost.tolist(), strict=True)]
    )


def priced_frontier(
    table: Table, quality: np.ndarray, cost: np.ndarray, prices: int = 300
) -> list[tuple[float, float]]:
    """True points of picking the least cost - price x quality by some estimates, at one fixed price after another:
    what these estimates allow at all, the best price being known beforehand."""
    rows = np.arange(len(table.prompts))
    usual = cost.mean()
    found = []
    for price in [0.0, *np.geomspace(1e-2, 1e4, prices)]:
        picked = (cost / usual - price * quality).argmin(axis=1)
        found.append((float(table.quality[rows, picked].mean()), float(table.cost_usd[rows, picked].mean())))
    return found


def cost_at(points: Points, quality: float) -> float:
    """Least mean cost of a mean quality by mixing points at random; NaN above the best."""
    hull = lower_hull(points)
    if quality > hull[-1][0] + 1e-12:
        return float("nan")
    qualities, costs = zip(*hull, strict=True)
    return float(np.interp(quality, qualities, costs))


def savings_at(
    resampled: Resampled, reached: Sequence[PickerResult], best: PickerResult, loss: float
) -> np.ndarray:
    """(1 + resamples,) savings at `loss` below the best single model's quality, by mixing what was `reached` at random.
    The mix is chosen anew in each resample, on the prompts that it is judged on."""
    quality = np.stack([resampled.means(each.quality) for each in reached], axis=1).tolist()
    cost_usd = np.stack([resampled.means(each.cost_usd) for each in reached], axis=1).tolist()
    least = [
        cost_at(list(zip(*points, strict=True)), wanted - loss)
        for *points, wanted in zip(quality, cost_usd, resampled.means(best.quality).tolist(), strict=True)
    ]
    return np.asarray(1.0 - np.array(least) / resampled.means(best.cost_usd))


def area(points: Points, low_usd: float, high_usd: float) -> float:
    """Mean over the costs from low to high of the best mean quality reached for so much, mixing points at random;
    the points are to begin at `low_usd` or below."""
    qualities, costs = zip(*lower_hull(points), strict=True)
    grid = np.linspace(low_usd, high_usd, 501)
    return float(np.interp(grid, costs, qualities).mean())


def points_of(found: Sequence[float]) -> str:
    """A difference of shares with its interval, in points of 100."""
    return f"{100 * found[0]:+.2f} [{100 * found[1]:+.1f}, {100 * found[2]:+.1f}]"


def percent_of(found: Sequence[float]) -> str:
    """A share with its interval."""
    return f"{found[0]:.1%} [{found[1]:.0%}, {found[2]:.0%}]"
