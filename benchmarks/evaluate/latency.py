"""How well the latency model predicts runs that it was not trained on, each on an instance that starts empty.

A run is replayed through the predictor that serves, so what is judged is what would have been served at each
dispatch, with what was known then: the model and the physical estimate together, weighed and calibrated online
("combined"). Beside it are the model alone ("LSTM"), the physical estimate with its online correction, which is what serves
without a model, and baselines that correct the same estimate (`latency_baselines`). docs/evaluation.md has the figures. A
request that was given up before its first token counts as longer than it was waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluate.figures import Curve, Evaluation, Figure
from benchmarks.evaluate.latency_baselines import LINEAR, TREES, Baseline, fit_linear, fit_trees
from benchmarks.evaluate.times import (
    LEAST,
    TIMES,
    blocks_of,
    check_apart,
    figure,
    figures_of,
    known_times,
    relative_errors,
)
from predictors.kernels.levels import P50, TAUS
from predictors.learned.artifact import Artifact
from predictors.learned.latency import TARGET_FEATURES, LatencyModel
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.replay import MODEL, PHYSICAL, SERVED, Episode, episodes

LSTM, COMBINED = "LSTM", "combined"
#: By name in `Episode.predicted`, what it is called here.
_OURS = {PHYSICAL: "physical estimate", MODEL: LSTM, SERVED: COMBINED}
_COVERED = (0.5, 0.9, 0.95)
_IN_FLIGHT = TARGET_FEATURES.index("in_flight")


@dataclass(frozen=True, slots=True)
class Judged:
    """Requests of the test part: `source` and `level` of each, its `block`, how many were `in_flight`, log seconds
    `actual` (N, 2), `longer_than` (N,) of those given up, and by name what was `predicted` (N, 2, 5)."""

    source: np.ndarray
    level: np.ndarray
    block: np.ndarray
    in_flight: np.ndarray
    actual: np.ndarray
    longer_than: np.ndarray
    predicted: dict[str, np.ndarray]

    def take(self, rows: np.ndarray) -> Judged:
        names = ("source", "level", "block", "in_flight", "actual", "longer_than")
        predicted = {name: predicted[rows] for name, predicted in self.predicted.items()}
        return Judged(**{name: getattr(self, name)[rows] for name in names}, predicted=predicted)


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """All figures on `test`; `train` (what the artifact was trained on) is what baselines are fitted to, None for
    none. Raises DatasetError if an attempt is in both, or if `test` has too few first tokens."""
    check_apart(test, train)
    found = list(episodes(test, LatencyModel.load(artifact)))
    known = [] if train is None else list(episodes(train))
    fits = {TREES: fit_trees, LINEAR: fit_linear} if known else {}
    judged = _judge(found, {name: fit(known, seed) for name, fit in fits.items()})
    if np.isfinite(judged.actual[:, 0]).sum() < LEAST:
        raise DatasetError(f"fewer than {LEAST} first tokens to judge latency by")
    figures: list[Figure] = []
    for part, rows in _parts(judged):
        figures += _figures(part, judged.take(rows), seed)
    return Evaluation("latency", tuple(figures), tuple(_curves(judged)), _notes(judged))


def _judge(found: Sequence[Episode], baselines: dict[str, Baseline]) -> Judged:
    def joined(of: Callable[[Episode], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(each) for each in found])

    def named(of: Callable[[Episode], str]) -> np.ndarray:
        return np.repeat([of(each) for each in found], [len(each.actual) for each in found])

    predicted = {title: joined(lambda each, name=name: each.predicted[name]) for name, title in _OURS.items()}  # type: ignore[misc]
    return Judged(
        named(lambda each: each.run.source),
        named(lambda each: each.run.level or ""),
        np.concatenate([blocks_of(each) for each in found]),
        joined(lambda each: np.expm1(each.targets[:, _IN_FLIGHT])),
        joined(lambda each: each.actual),
        joined(lambda each: each.longer_than),
        {**predicted, **{name: joined(predict) for name, predict in baselines.items()}},
    )


def _parts(judged: Judged) -> Iterator[tuple[str, np.ndarray]]:
    for source in np.unique(judged.source):
        of_source = judged.source == source
        yield str(source), np.flatnonzero(of_source)
        levels = np.unique(judged.level[of_source])
        if len(levels) > 1:
            for level in sorted(levels, key=_in_order):
                yield f"{source}, level {level}", np.flatnonzero(of_source & (judged.level == level))


def _in_order(level: str) -> tuple[float, str]:
    try:
        return float(level), level
    except ValueError:
        return np.inf, level


# --- figures ------------------------------------------------------------------------------------------
def _figures(part: str, judged: Judged, seed: int) -> Iterator[Figure]:
    for time, name, known in known_times(judged.actual):
        actual, block = judged.actual[known, time], judged.block[known]
        for of, predicted in judged.predicted.items():
            yield from figures_of(name, of, part, actual, predicted[known, time], block, seed)
        yield from _coverages(part, judged, time, seed)


def _coverages(part: str, judged: Judged, time: int, seed: int) -> Iterator[Figure]:
    for of in (_OURS[PHYSICAL], LSTM, COMBINED):
        for probability in _COVERED:
            covered = _covered(judged, time, of, probability)
            known = np.flatnonzero(np.isfinite(covered))
            name = f"{TIMES[time]} coverage at {probability:g}"
            yield figure(name, of, part, covered[known], judged.block[known], seed)


def _covered(judged: Judged, time: int, of: str, probability: float) -> np.ndarray:
    """(N,): 1 where the actual value was within this quantile, 0 where it was not, NaN where nobody knows."""
    quantile, actual = judged.predicted[of][:, time, TAUS.index(probability)], judged.actual[:, time]
    covered = np.where(np.isfinite(actual), actual <= quantile, np.nan)
    if time == 0:
        covered[~np.isfinite(actual) & (judged.longer_than > quantile)] = 0.0
    return covered


# --- curves -------------------------------------------------------------------------------------------
def _curves(judged: Judged) -> Iterator[Curve]:
    for source in np.unique(judged.source):
        of_source = judged.take(np.flatnonzero(judged.source == source))
        for time, name, _ in known_times(of_source.actual):
            yield from _calibration(str(source), of_source, time, name)
            yield from _by_load(str(source), of_source, time, name)


def _calibration(source: str, judged: Judged, time: int, name: str) -> Iterator[Curve]:
    for of in (_OURS[PHYSICAL], LSTM, COMBINED):
        shares = tuple(float(np.nanmean(_covered(judged, time, of, tau))) for tau in TAUS)
        yield Curve(f"{name} calibration, {source}", of, "nominal", "share within the quantile", TAUS, shares)


def _by_load(source: str, judged: Judged, time: int, name: str) -> Iterator[Curve]:
    """Median relative error by requests in flight, in bins of a factor of two."""
    known = np.isfinite(judged.actual[:, time])
    bins = np.floor(np.log2(judged.in_flight + 1.0))
    wanted = [each for each in np.unique(bins) if (known & (bins == each)).sum() >= LEAST]
    for of, predicted in judged.predicted.items():
        errors = relative_errors(judged.actual[:, time], predicted[:, time, P50])
        medians = tuple(float(np.median(errors[known & (bins == each)])) for each in wanted)
        loads = tuple(float(2.0**each) for each in wanted)
        axes = "requests in flight, + 1", "median relative error"
        yield Curve(f"{name} error by load, {source}", of, *axes, loads, medians)


def _notes(judged: Judged) -> tuple[str, ...]:
    given_up = int(np.isfinite(judged.longer_than).sum())
    notes = [
        "Errors are of medians; pinball losses are of log seconds, mean over the quantiles "
        + ", ".join(f"{tau:g}" for tau in TAUS)
        + ".",
        "Every run is replayed on an instance of which nothing is known at its start.",
    ]
    if given_up:
        notes.append(
            f"{given_up} requests were given up before a first token; coverage counts them, errors do not."
        )
    return tuple(notes)
