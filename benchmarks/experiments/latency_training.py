"""Latency predictors fitted to part of the data: to one family, without some features, to few requests, and to other
instances, models and GPUs than those that they are judged on.

All figures are of requests at instances whose history is replayed from its start. The physical estimate has its online
correction throughout, and the LSTM and the trees correct it further. What serves weighs the LSTM against the estimate and
calibrates it online.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.datasets.emulated import emulate
from benchmarks.datasets.public import read_public
from benchmarks.datasets.splits import split
from benchmarks.evaluate.figures import Figure
from benchmarks.evaluate.times import TIMES, blocks_of, figures_of, known_times
from benchmarks.experiments import charts
from benchmarks.experiments.latency_fits import FEATURES, LatencyFit, fit_lstm, fit_trees, predicted_by
from benchmarks.experiments.report import Chart, Results, Section, Value, interval
from predictors.kernels.levels import TAUS
from predictors.learned.models import load_models
from predictors.training.dataset import fraction_of
from predictors.training.replay import PHYSICAL, SERVED, Episode, episodes

ESTIMATE, LSTM, TREES, COMBINED = "physical estimate", "LSTM", "boosted trees", "LSTM, weighed and calibrated"
FIT: Mapping[str, Callable[..., LatencyFit]] = {LSTM: fit_lstm, TREES: fit_trees}
FAMILIES = ("llama", "qwen")
#: What something was fitted to, where it is not a part, and where nothing was fitted.
ALL, WITH_LOGS, NOTHING = "all", "all, and other loads of the logs", "nothing"
#: Seeds of the worlds, apart from those that the shipped models were trained on.
_TRAIN_WORLDS, _TEST_WORLDS = 60_000, 65_000
_REQUESTS = 150
_PARTS = (0.125, 0.25, 0.5)
_FOLDS = 3
#: Runs of a published log at most, and the part of its load levels that is judged.
_MOST_RUNS, _HELD_OUT = 20, 0.2
Predict = Callable[[Episode], np.ndarray]


class Judged(NamedTuple):
    """A predictor on some runs. By time (TTFT, TPOT), None where there are too few requests: median relative error,
    and mean pinball loss of log seconds over `TAUS`."""

    judged_on: str
    fitted_to: str
    predictor: str
    times: tuple[tuple[Figure, Figure] | None, ...]


def judge(
    names: tuple[str, str, str],
    found: Sequence[Episode],
    predict: Predict,
    seed: int,
    *,
    kept: Callable[[int], slice] = slice,
) -> Judged:
    """`predict` gives log seconds (N, 2, 5) of a run. `kept` says which of a run's requests count, by their number."""
    parts = [kept(len(each.actual)) for each in found]
    actual = np.concatenate([each.actual[part] for each, part in zip(found, parts, strict=True)])
    predicted = np.concatenate([predict(each)[part] for each, part in zip(found, parts, strict=True)])
    blocks = np.concatenate([blocks_of(each)[part] for each, part in zip(found, parts, strict=True)])
    times = {
        name: figures_of(name, "", "", actual[rows, time], predicted[rows, time], blocks[rows], seed)
        for time, name, rows in known_times(actual)
    }
    return Judged(*names, tuple(times.get(name) for name in TIMES))


def table(title: str, rows: Sequence[Judged]) -> Results:
    """A row for each predictor."""
    columns = ["judged on", "fitted to", "predictor"]
    for name in TIMES:
        columns += [
            f"{name}: {of}" for of in ("requests", "median error (%)", "pinball loss", "95 % interval")
        ]
    return Results(title, columns, [[*each[:3], *_cells(each)] for each in rows])


def _cells(each: Judged) -> Iterator[Value]:
    for of_time in each.times:
        if of_time is None:
            yield from [None] * 4
        else:
            error, loss = of_time
            yield from (loss.rows, 100 * error.value, loss.value, interval(loss.low, loss.high, ".3f"))


def chart(name: str, caption: str, rows: Mapping[str, Sequence[tuple[str, Judged]]]) -> list[Chart]:
    """Losses of TTFT: (lane, predictor) by row. Empty if nothing has one."""
    known = {
        row: [(lane, each.times[0][1]) for lane, each in found if each.times[0] is not None]
        for row, found in rows.items()
    }
    known = {row: found for row, found in known.items() if found}
    if not known:
        return []
    return [charts.of_figures(name, caption, "pinball loss of log TTFT (less is better)", known)]


def _replayed(name: str) -> Predict:
    return lambda each: each.predicted[name]


def _requests(found: Sequence[Episode]) -> int:
    return sum(len(each.actual) for each in found)


class LatencyTraining:
    """Emulated instances to fit to and other ones to judge on. `fits` has what was fitted so far, by predictor and by what it
    was fitted to."""

    def __init__(self, worlds: int, seed: int) -> None:
        """`worlds` of each kind, of which one has one instance or a few."""
        self.seed = seed
        self.fits: dict[tuple[str, str], LatencyFit] = {}
        made = emulate(seed=_TRAIN_WORLDS + seed, runs=worlds, requests=_REQUESTS)
        self.train = list(episodes(made, judge=True))
        lstm = self.fit(LSTM, ALL, self.train)
        made = emulate(seed=_TEST_WORLDS + seed, runs=worlds, requests=_REQUESTS)
        self.test = list(episodes(made, lstm.model()))

    def fit(
        self, predictor: str, to: str, runs: Sequence[Episode], left_out: Collection[str] = ()
    ) -> LatencyFit:
        """A fit, of which there is one for each `to`."""
        if (predictor, to) not in self.fits:
            self.fits[predictor, to] = FIT[predictor](runs, self.seed, left_out=left_out)
        return self.fits[predictor, to]

    # --- sections ---------------------------------------------------------------------------------------
    def families(self) -> Section:
        """Each family by what was fitted to its own instances, to those of the other one, and to both."""
        rows: list[Judged] = []
        for family in FAMILIES:
            runs = [each for each in self.test if each.run.family == family]
            rows.append(judge((family, NOTHING, ESTIMATE), runs, _replayed(PHYSICAL), self.seed))
            for predictor in FIT:
                for to in (*FAMILIES, ALL):
                    fitted = self.fit(
                        predictor, to, [each for each in self.train if to in (each.run.family, ALL)]
                    )
                    rows.append(judge((family, to, predictor), runs, fitted, self.seed))
            rows.append(judge((family, ALL, COMBINED), runs, _replayed(SERVED), self.seed))
        caption = "Loss of TTFT by family and predictor, by what was fitted to"
        by_predictor: dict[str, list[tuple[str, Judged]]] = {}
        for each in rows:
            by_predictor.setdefault(f"{each.judged_on}: {each.predictor}", []).append(
                (f"fitted to {each.fitted_to}", each)
            )
        return Section(
            "Latency: Llama and Qwen",
            [
                f"Fitted to {len(self.train)} emulated instances ({_requests(self.train):,} requests) of drawn models, GPUs and"
                f" load, judged on {len(self.test)} other ones. The pinball loss is of log seconds, mean over the quantiles"
                f" {', '.join(f'{tau:g}' for tau in TAUS)}.",
                "No log of a Qwen engine is published that has what is needed here. All that is said of Qwen's latency is of"
                " emulated engines.",
            ],
            [table("Latency predictors by family", rows)],
            chart("latency_families", caption, by_predictor),
        )

    def features(self) -> Section:
        """Fitted anew without each group of features."""
        rows = [judge((ALL, NOTHING, ESTIMATE), self.test, _replayed(PHYSICAL), self.seed)]
        lanes = {ESTIMATE: [(ESTIMATE, rows[0])]}
        for what, left_out in {"all features": frozenset[str](), **FEATURES}.items():
            for predictor in FIT:
                if predictor == TREES and left_out == FEATURES[EVENTS]:
                    continue
                to = ALL if not left_out else f"without {what}"
                fitted = self.fit(predictor, to, self.train, left_out)
                rows.append(judge((ALL, to, predictor), self.test, fitted, self.seed))
                lanes.setdefault(what if not left_out else to, []).append((predictor, rows[-1]))
        return Section(
            "Latency: features",
            [
                "The same instances as above. Groups of features are left out one at a time, and all is fitted anew. The"
                " physical estimate that is corrected keeps its own online correction.",
                "The features of a request have the last times and errors and the age of what waits, which the LSTM reads from"
                " the events once more. The trees read no events.",
            ],
            [table("Latency predictors without some of their features", rows)],
            chart("latency_features", "Loss of TTFT without groups of features", lanes),
        )

    def curve(self) -> Section:
        """Fitted to a part of the instances."""
        shipped = load_models()
        assert shipped.latency is not None  # noqa: S101 (it comes with Headway)
        order = sorted(self.train, key=lambda each: fraction_of(each.run.id, self.seed))
        parts = [order[: max(2, round(part * len(order)))] for part in _PARTS]
        rows: list[Judged] = []
        series: dict[str, dict[str, list[tuple[float, float]]]] = {}

        def draw(found: Judged, predictor: str, size: int) -> None:
            for time, figures in zip(TIMES, found.times, strict=True):
                if figures is not None:
                    points = series.setdefault(time, {}).setdefault(predictor, [])
                    points.append((float(size), figures[1].value))

        for runs in (*parts, self.train):
            size = _requests(runs)
            to = ALL if runs is self.train else f"{size:,} requests"
            for predictor in (*FIT, ESTIMATE):
                predict = _replayed(PHYSICAL) if predictor == ESTIMATE else self.fit(predictor, to, runs)
                names = (ALL, NOTHING if predictor == ESTIMATE else to, predictor)
                found = judge(names, self.test, predict, self.seed)
                if predictor != ESTIMATE or runs is self.train:
                    rows.append(found)
                draw(found, predictor, size)
        size = sum(shipped.about["latency"]["requests"].values())
        names = (ALL, f"{size:,} requests (shipped)", LSTM)
        found = judge(names, self.test, partial(predicted_by, shipped.latency), self.seed)
        rows.append(found)
        draw(found, LSTM, size)
        return Section(
            "Latency: learning curves",
            [
                "The same instances as above. Fitted is to a part of them, drawn at random. The shipped LSTM was fitted to more emulated"
                " instances, none of these, and to two published logs."
            ],
            [table("Latency predictors by the size of their training data", rows)],
            [
                charts.lines(
                    "latency_curve",
                    "Pinball loss of log seconds by the number of requests that were fitted to",
                    "requests that were fitted to",
                    "pinball loss",
                    series,
                    log_x=True,
                )
            ],
        )

    def transfer(self) -> Section:
        """Fitted to two of three folds: with the one that is judged, or without it."""
        runs = [each for each in self.train if len(each.actual) > 1]
        first = [_first_half(each) for each in runs]

        def late(size: int) -> slice:
            return slice(size // 2, size)

        rows = [judge((ALL, NOTHING, ESTIMATE), runs, _replayed(PHYSICAL), self.seed, kept=late)]
        lanes = {ESTIMATE: [(ESTIMATE, rows[0])]}
        for what, (name_of, among) in TRANSFERS.items():
            fold = folds([name_of(each) for each in runs], self.seed)
            for predictor in FIT:
                by_run: dict[str, np.ndarray] = {}
                for at in range(_FOLDS):
                    used = [(at + step) % _FOLDS for step in among]
                    fitted = FIT[predictor](
                        [each for each, of in zip(first, fold, strict=True) if of in used], self.seed
                    )
                    by_run |= {
                        each.run.id: fitted(each) for each, of in zip(runs, fold, strict=True) if of == at
                    }
                names = (ALL, what, predictor)
                rows.append(judge(names, runs, lambda each, by=by_run: by[each.run.id], self.seed, kept=late))  # type: ignore[misc]
                lanes.setdefault(what, []).append((predictor, rows[-1]))
        return Section(
            "Latency: what was never seen",
            [
                f"{len(runs)} emulated instances in {_FOLDS} folds: of whole instances, models or GPUs. Fitted is to the first"
                " half of each run of two folds, judged on the second half of the third. For the same instances that third fold"
                " is one of the two, so all are fitted to about as much.",
                "Each run is replayed from its start, so all know what is learned online of an instance.",
            ],
            [table("Latency predictors at what they were not fitted to", rows)],
            chart("latency_transfer", "Loss of TTFT by what was never seen", lanes),
        )

    def logs(self, data: Path, logs: Sequence[str]) -> Section:
        """Published logs of real engines, all of Llama models, judged on whole load levels."""
        kept: dict[str, list[Episode]] = {}
        held_out: dict[str, list[Episode]] = {}
        for name in logs:
            read = read_public(data, (name,))
            chosen = sorted((run.id for run in read.runs), key=lambda each: fraction_of(each, self.seed))[
                :_MOST_RUNS
            ]
            thinned = read.keep(run=lambda run, among=frozenset(chosen): run.id in among)  # type: ignore[misc]
            train, test = split(thinned, _HELD_OUT, self.seed, of_prompts=False)
            kept[name] = list(episodes(train))
            held_out[name] = list(episodes(test, judge=True))
        rows: list[Judged] = []
        everything = [*self.train, *(each for found in kept.values() for each in found)]
        for name, judged in held_out.items():
            rows.append(judge((name, NOTHING, ESTIMATE), judged, _replayed(PHYSICAL), self.seed))
            for predictor in FIT:
                for to, runs in ((ALL, self.train), (WITH_LOGS, everything)):
                    fitted = self.fit(predictor, to, runs)
                    rows.append(judge((name, to, predictor), judged, fitted, self.seed))
        lanes = {
            name: [
                (each.predictor + (f" ({each.fitted_to})" if each.fitted_to != NOTHING else ""), each)
                for each in rows
                if each.judged_on == name
            ]
            for name in held_out
        }
        return Section(
            "Latency: logs of real engines",
            [
                f"Published logs of Llama models on vLLM and on Helix, judged on {_HELD_OUT:.0%} of their load levels. At most"
                f" {_MOST_RUNS} runs of a log are used.",
                f"“{ALL}” are the emulated instances above alone: to what is fitted to them, these engines are new.",
            ],
            [table("Latency predictors on published logs", rows)],
            chart("latency_logs", "Loss of TTFT on published logs, by what was fitted to", lanes),
        )


EVENTS = next(iter(FEATURES))
#: What a fold is of, and which folds are fitted to, counted from the one that is judged.
TRANSFERS: Mapping[str, tuple[Callable[[Episode], str], tuple[int, int]]] = {
    "the same instances, earlier": (lambda each: each.run.instance, (0, 1)),
    "other instances": (lambda each: each.run.instance, (1, 2)),
    "other models": (lambda each: each.run.model, (1, 2)),
    "other GPUs": (lambda each: gpu_of(each.run.hardware), (1, 2)),
}


def gpu_of(hardware: str | None) -> str:
    """The GPU, however many of them there are: "a100-80g" of "4xa100-80g"."""
    count, times, kind = (hardware or "").partition("x")
    return kind if times and count.isdecimal() else hardware or ""


def folds(names: Sequence[str], seed: int) -> np.ndarray:
    """(N,): the fold of each, the same for equal names. The folds are about equally large."""
    sizes = np.zeros(_FOLDS)
    fold: dict[str, int] = {}
    counts = Counter(names)
    for name in sorted(counts, key=lambda name: (-counts[name], fraction_of(name, seed))):
        fold[name] = int(sizes.argmin())
        sizes[fold[name]] += counts[name]
    return np.array([fold[name] for name in names])


def _first_half(each: Episode) -> Episode:
    half = len(each.actual) // 2
    of_requests = ("targets", "seen", "corrected", "actual", "longer_than", "held", "tree_rows", "tree_bases")
    rows = {name: getattr(each, name)[:half] for name in of_requests}
    return replace(each, events=each.events[: each.seen[half]], predicted={}, **rows)
