"""How well the latency model predicts runs that it was not trained on, each on an instance that starts empty.

A run is replayed through the predictor that serves, so what is judged is what would have been served at each
dispatch, with what was known then: the model and the physical estimate together, weighed and calibrated online
("combined"). Beside it are the model alone ("LSTM"), the physical estimate with its online correction, which is what serves
without a model, and baselines that correct the same estimate (`latency_baselines`). docs/evaluation.md has the figures. A
request that was given up before its first token counts as longer than it was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from benchmarks.evaluate.figures import Curve, Evaluation, Figure
from benchmarks.evaluate.latency_baselines import LINEAR, TREES, Baseline, fit_linear, fit_trees
from benchmarks.evaluate.times import (
    LEAST,
    blocks_of,
    check_apart,
    figure,
    figures_of,
    known_times,
    relative_errors,
)
from benchmarks.workloads.published import grouped
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


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """All figures on `test`; `train` (what the artifact was trained on) is what baselines are fitted to, None for
    none. Raises DatasetError if an attempt is in both, or if `test` has too few first tokens."""
    check_apart(test, train)
    known = [] if train is None else list(episodes(train))
    fits = {TREES: fit_trees, LINEAR: fit_linear} if known else {}
    baselines = {name: fit(known, seed) for name, fit in fits.items()}
    found = [_named(each, baselines) for each in episodes(test, LatencyModel.load(artifact))]
    if sum(np.isfinite(each.actual[:, 0]).sum() for each in found) < LEAST:
        raise DatasetError(f"fewer than {LEAST} first tokens to judge latency by")
    figures: list[Figure] = []
    curves: list[Curve] = []
    for source, of_source in sorted(grouped(found, attrgetter("run.source")).items()):
        figures += _figures(source, of_source, seed)
        levels = grouped(of_source, lambda each: each.run.level or "")
        for level in sorted(levels, key=_in_order) if len(levels) > 1 else ():
            figures += _figures(f"{source}, level {level}", levels[level], seed)
        curves += _curves(source, of_source)
    return Evaluation("latency", tuple(figures), tuple(curves), _notes(found))


def _named(episode: Episode, baselines: Mapping[str, Baseline]) -> Episode:
    """The run with its predictions as they are called here, and with those of the baselines."""
    predicted = {title: episode.predicted[name] for name, title in _OURS.items()}
    return replace(episode, predicted=predicted | {name: of(episode) for name, of in baselines.items()})


def _predicted(found: Sequence[Episode], of: str) -> np.ndarray:
    return np.concatenate([each.predicted[of] for each in found])


def _actual(found: Sequence[Episode]) -> np.ndarray:
    return np.concatenate([each.actual for each in found])


def _in_order(level: str) -> tuple[float, str]:
    try:
        return float(level), level
    except ValueError:
        return np.inf, level


# --- figures ------------------------------------------------------------------------------------------
def _figures(part: str, found: Sequence[Episode], seed: int) -> Iterator[Figure]:
    actual, block = _actual(found), np.concatenate([blocks_of(each) for each in found])
    for time, name, known in known_times(actual):
        for of in found[0].predicted:
            predicted = _predicted(found, of)[known, time]
            yield from figures_of(name, of, part, actual[known, time], predicted, block[known], seed)
        for of in (_OURS[PHYSICAL], LSTM, COMBINED):
            for probability in _COVERED:
                covered = _covered(found, time, of, probability)
                told = np.flatnonzero(np.isfinite(covered))
                coverage = f"{name} coverage at {probability:g}"
                yield figure(coverage, of, part, covered[told], block[told], seed)


def _covered(found: Sequence[Episode], time: int, of: str, probability: float) -> np.ndarray:
    """(N,): 1 where the actual value was within this quantile, 0 where it was not, NaN where nobody knows."""
    quantile, actual = _predicted(found, of)[:, time, TAUS.index(probability)], _actual(found)[:, time]
    covered = np.where(np.isfinite(actual), actual <= quantile, np.nan)
    if time == 0:
        longer_than = np.concatenate([each.longer_than for each in found])
        covered[~np.isfinite(actual) & (longer_than > quantile)] = 0.0
    return covered


# --- curves -------------------------------------------------------------------------------------------
def _curves(source: str, found: Sequence[Episode]) -> Iterator[Curve]:
    for time, name, _ in known_times(_actual(found)):
        for of in (_OURS[PHYSICAL], LSTM, COMBINED):
            shares = tuple(float(np.nanmean(_covered(found, time, of, tau))) for tau in TAUS)
            axes = "nominal", "share within the quantile"
            yield Curve(f"{name} calibration, {source}", of, *axes, TAUS, shares)
        yield from _by_load(source, found, time, name)


def _by_load(source: str, found: Sequence[Episode], time: int, name: str) -> Iterator[Curve]:
    """Median relative error by requests in flight, in bins of a factor of two."""
    actual = _actual(found)[:, time]
    in_flight = np.concatenate([np.expm1(each.targets[:, _IN_FLIGHT]) for each in found])
    bins = np.floor(np.log2(in_flight + 1.0))
    wanted = [each for each in np.unique(bins) if (np.isfinite(actual) & (bins == each)).sum() >= LEAST]
    for of in found[0].predicted:
        errors = relative_errors(actual, _predicted(found, of)[:, time, P50])
        medians = tuple(float(np.median(errors[np.isfinite(actual) & (bins == each)])) for each in wanted)
        loads = tuple(float(2.0**each) for each in wanted)
        axes = "requests in flight, + 1", "median relative error"
        yield Curve(f"{name} error by load, {source}", of, *axes, loads, medians)


def _notes(found: Sequence[Episode]) -> tuple[str, ...]:
    given_up = int(sum(np.isfinite(each.longer_than).sum() for each in found))
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
