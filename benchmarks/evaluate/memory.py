"""How good the memory model is on runs that it was not trained on, beside the closed form and beside the guess
that KV use stays as the engine last reported it.

Each run is played twice: as it was, and as if its engine reported nothing (then there is no last report).
Intervals are from resamples of whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluate.figures import WHOLE, Curve, Evaluation, Figure, equal_bins, resampled_figure
from benchmarks.evaluate.times import check_apart
from predictors.learned.artifact import Artifact
from predictors.learned.memory import MemoryModel
from predictors.training.dataset import Dataset
from predictors.training.memory_rows import MemoryRows, usable

MODEL = "memory model"
CLOSED_FORM = "closed form"
LAST_REPORT = "last report"
#: What the model must gain on the closed form to be shipped.
TARGET_GAIN = 0.15
_GAIN = "part of the closed form's MAE saved"
_REPORTING, _NOT_REPORTING = "engines that report", "the same without reports"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of several runs, by column."""

    runs: np.ndarray
    sources: np.ndarray
    kv_known: np.ndarray
    actual: np.ndarray
    errors: dict[str, np.ndarray]  # absolute, by whose prediction
    predicted: np.ndarray


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """Figures on `test`. `train` is not needed: neither baseline is fitted. Raises DatasetError where `test` has
    attempts of `train`, or no run with KV use."""
    check_apart(test, train)
    rows = _predicted(MemoryModel.load(artifact), usable(test))
    figures = [figure for part, which in _parts(rows) for figure in _figures(rows, part, which, seed)]
    gain = next(each for each in figures if each.name == _GAIN and each.part == WHOLE)
    reached = "reached" if gain.value >= TARGET_GAIN else "missed"
    notes = (
        f"The mean absolute error is {gain.value:.1%} lower than the closed form's; at least "
        f"{TARGET_GAIN:.0%} was wanted: {reached}.",
        "KV use is the mean over a request's life, from dispatch to end, of the engine's own reports; requests "
        "without a whole answer are left out.",
    )
    return Evaluation("memory", tuple(figures), tuple(_curves(rows)), notes)


def _predicted(model: MemoryModel, found: Sequence[MemoryRows]) -> _Rows:
    def column(of: Callable[[MemoryRows], object]) -> np.ndarray:
        return np.concatenate([np.full(len(each.actual), of(each)) for each in found])

    actual = np.concatenate([each.actual for each in found])
    predicted = np.concatenate([model.predict(each.features) for each in found])
    kv_known = column(lambda each: each.kv_known).astype(bool)
    guesses = {
        MODEL: predicted,
        CLOSED_FORM: np.concatenate([each.held for each in found]),
        LAST_REPORT: np.where(kv_known, np.concatenate([each.reported for each in found]), np.nan),
    }
    errors = {of: np.abs(guess - actual) for of, guess in guesses.items()}
    runs, sources = column(lambda each: each.run.id), column(lambda each: each.run.source)
    return _Rows(runs, sources, kv_known, actual, errors, predicted)


def _parts(rows: _Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Names and masks. All: with reports, as the engines were."""
    yield WHOLE, rows.kv_known
    for source in sorted(set(rows.sources)):
        yield f"{source}, {_REPORTING}", rows.kv_known & (rows.sources == source)
        yield f"{source}, {_NOT_REPORTING}", ~rows.kv_known & (rows.sources == source)


def _figures(rows: _Rows, part: str, which: np.ndarray, seed: int) -> Iterator[Figure]:
    runs = rows.runs[which]

    def figure(name: str, of: str, statistic: Callable[[np.ndarray], float]) -> Figure:
        return resampled_figure(name, of, part, runs, statistic, seed=seed)

    errors = {of: error[which] for of, error in rows.errors.items()}
    model, closed = errors[MODEL], errors[CLOSED_FORM]
    for of, error in errors.items():
        if not np.isnan(error).any():
            yield figure("MAE", of, lambda at, error=error: float(error[at].mean()))  # type: ignore[misc]
    yield figure("MAE", f"{MODEL} - {CLOSED_FORM}", lambda at: float((model[at] - closed[at]).mean()))
    yield figure(_GAIN, MODEL, lambda at: 1.0 - float(model[at].mean() / max(closed[at].mean(), 1e-9)))


def _curves(rows: _Rows) -> Iterator[Curve]:
    """Mean actual use by tenths of the predicted."""
    predicted, actual = rows.predicted[rows.kv_known], rows.actual[rows.kv_known]
    parts = equal_bins(predicted)
    xs, ys = ([float(values[part].mean()) for part in parts] for values in (predicted, actual))
    title, x_name, y_name = "KV use over a request's life", "predicted", "measured"
    yield Curve(title, MODEL, x_name, y_name, tuple(xs), tuple(ys))
    yield Curve(title, "as predicted", x_name, y_name, (0.0, max(xs)), (0.0, max(xs)))
