"""How good the memory model is on runs that it was not trained on, beside the closed form and beside the guess
that KV use stays as the engine last reported it.

Each run is played twice: as it was, and as if its engine reported nothing (then there is no last report).
Intervals are from resamples of whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import numpy as np

from benchmarks.evaluate.figures import WHOLE, Curve, Evaluation, Figure, equal_bins, resampled_figure
from benchmarks.evaluate.times import check_apart
from benchmarks.workloads.published import grouped
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


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """Figures on `test`. `train` is not needed: neither baseline is fitted. Raises DatasetError where `test` has
    attempts of `train`, or no run with KV use."""
    check_apart(test, train)
    model = MemoryModel.load(artifact)
    parts = grouped(usable(test), attrgetter("kv_known"))
    figures = [*_figures(model, parts[True], WHOLE, seed)]
    sources = {name: grouped(parts[name], attrgetter("run.source")) for name in (True, False)}
    for source in sorted(sources[True]):
        for kv_known, name in ((True, _REPORTING), (False, _NOT_REPORTING)):
            figures += _figures(model, sources[kv_known][source], f"{source}, {name}", seed)
    gain = next(each for each in figures if each.name == _GAIN and each.part == WHOLE)
    reached = "reached" if gain.value >= TARGET_GAIN else "missed"
    notes = (
        f"The mean absolute error is {gain.value:.1%} lower than the closed form's; at least "
        f"{TARGET_GAIN:.0%} was wanted: {reached}.",
        "KV use is the mean over a request's life, from dispatch to end, of the engine's own reports; requests "
        "without a whole answer are left out.",
    )
    return Evaluation("memory", tuple(figures), tuple(_curves(model, parts[True])), notes)


def _figures(model: MemoryModel, found: Sequence[MemoryRows], part: str, seed: int) -> Iterator[Figure]:
    """Of rows in which KV use was reported, or of rows in which it was not."""
    runs = np.repeat([each.run.id for each in found], [len(each.actual) for each in found])

    def figure(name: str, of: str, statistic: Callable[[np.ndarray], float]) -> Figure:
        return resampled_figure(name, of, part, runs, statistic, seed=seed)

    def errors_of(predicted: Callable[[MemoryRows], np.ndarray]) -> np.ndarray:
        return np.concatenate([np.abs(predicted(each) - each.actual) for each in found])

    ours, closed = errors_of(lambda each: model.predict(each.features)), errors_of(attrgetter("held"))
    errors = {MODEL: ours, CLOSED_FORM: closed}
    if found[0].kv_known:
        errors[LAST_REPORT] = errors_of(attrgetter("reported"))
    for of, error in errors.items():
        yield figure("MAE", of, lambda at, error=error: float(error[at].mean()))  # type: ignore[misc]
    yield figure("MAE", f"{MODEL} - {CLOSED_FORM}", lambda at: float((ours[at] - closed[at]).mean()))
    yield figure(_GAIN, MODEL, lambda at: 1.0 - float(ours[at].mean() / max(closed[at].mean(), 1e-9)))


def _curves(model: MemoryModel, found: Sequence[MemoryRows]) -> Iterator[Curve]:
    """Mean actual use by tenths of the predicted."""
    predicted = np.concatenate([model.predict(each.features) for each in found])
    actual = np.concatenate([each.actual for each in found])
    parts = equal_bins(predicted)
    xs, ys = ([float(values[part].mean()) for part in parts] for values in (predicted, actual))
    title, x_name, y_name = "KV use over a request's life", "predicted", "measured"
    yield Curve(title, MODEL, x_name, y_name, tuple(xs), tuple(ys))
    yield Curve(title, "as predicted", x_name, y_name, (0.0, max(xs)), (0.0, max(xs)))
