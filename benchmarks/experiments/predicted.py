"""Which share of the variance each predictor explains, by what is predicted.

Runs are replayed as they were served, so that each prediction is what would have been known then. R^2 is of log seconds (of
the ratio for memory), of all variance and of that inside a run: of all, a predictor that only knows how fast each instance is
explains much. The trees are fitted here, to other runs than those that are judged. The trained models are those that come
with Headway; of a log that they were trained on they explain more than of a new one, which the table says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.datasets.emulated import SOURCE as EMULATED
from benchmarks.datasets.emulated import emulate
from benchmarks.datasets.engine_logs import ENGINE_LOGS
from benchmarks.datasets.public import present, read_public
from benchmarks.datasets.splits import split
from benchmarks.evaluate.figures import Figure
from benchmarks.evaluate.latency_baselines import grown, target_rows
from benchmarks.evaluate.length import answers_of, shares_of
from benchmarks.evaluate.plots import ends
from benchmarks.evaluate.times import TIMES, blocks_of, known_times
from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section, interval
from benchmarks.experiments.variance import Values, places, with_interval
from benchmarks.workloads.published import grouped
from predictors.kernels.levels import P50
from predictors.learned.length_model import LengthModel, quantiles
from predictors.learned.models import Models, load_models
from predictors.training.dataset import Dataset, joined, split_prompts
from predictors.training.memory_rows import rows_of_runs
from predictors.training.replay import MODEL, PHYSICAL, SERVED, Episode, episodes

ESTIMATE, LSTM, CALIBRATED, TREES = "physical estimate", "LSTM", "LSTM, calibrated online", "boosted trees"
MEMORY_MODEL, CLOSED_FORM, LAST_REPORT = "memory model", "closed form", "last report"
LENGTHS, LENGTH_MODEL, MEAN_LENGTH = "output tokens", "length model (LSTM)", "mean of the model's answers"
_OURS = {PHYSICAL: ESTIMATE, MODEL: LSTM, SERVED: CALIBRATED}
#: Seeds of the worlds that are judged and of those that trees are fitted to, apart from those that models were trained on.
_TEST_WORLDS, _TRAIN_WORLDS = 70_000, 80_000
_HELD_OUT = 0.2
#: Sets with lengths of whole answers, and prompts of a set that are judged at most.
_LENGTH_SETS, _MOST_PROMPTS = ("zeroeval", "alpaca_eval", "arena_2023"), 300
_MOST_ROWS = 30_000
#: Log seconds (N, 2) of an episode's requests.
Predict = Callable[[Episode], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Explained:
    """What a predictor explains of one quantity in one source: of all variance, and of that `inside` groups (runs, or
    models). `seen`: it was trained on this source."""

    what: str
    source: str
    of: str
    whole: Figure
    inside: Figure
    seen: bool


def section(worlds: int, seed: int, data: Path | None) -> Section:
    """On `worlds` emulated instances, and on the published logs that `data` has."""
    test = emulate(seed=_TEST_WORLDS + seed, runs=worlds, requests=200)
    train = emulate(seed=_TRAIN_WORLDS + seed, runs=worlds, requests=200)
    if data is not None and (logs := present(data, ENGINE_LOGS)):
        kept, held_out = split(read_public(data, logs), _HELD_OUT, seed, of_prompts=False)
        train, test = joined((train, kept)), joined((test, held_out))
    models = load_models()
    found = [*_times(train, test, models, seed), *_memory(test, models, seed)]
    if data is not None:
        found += lengths_explained(data, models, _trained_on(models, "length"), seed)
    text = [
        "R² is 1 minus the squared errors divided by the squared differences to the mean, of log TTFT, log TPOT and the mean"
        " KV use. Below 0, the mean would be a better prediction; but the mean of a run is known only after the run."
        " Intervals are 95 %, over blocks of neighbours in time.",
        f"The {worlds} emulated instances, of drawn models, hardware and load, differ from those that the shipped models"
        " were trained on. Published logs are judged on whole load levels to which the trees were not fitted; the"
        " figure leaves out a shipped model where it was trained on that log, because it has seen these levels.",
        "The shipped trees predict only the p90, so other trees are fitted here, to other runs.",
    ]
    if any(each.what == LENGTHS for each in found):
        text.append(
            "Lengths of answers are judged on sets that the shipped length model was not trained on; there, inside a run means"
            " inside a model. The gateway falls back to the lengths of a model's own answers where these are better."
        )
    charted = [each for each in found if not each.seen]
    return Section(
        "What predictors explain",
        text,
        [
            Results.of(
                "Share of the variance that each predictor explains (R²)",
                [
                    {
                        "quantity": each.what,
                        "source": each.source,
                        "predictor": each.of,
                        "requests": each.whole.rows,
                        "of all variance": each.whole.value,
                        "95 % interval": interval(each.whole.low, each.whole.high),
                        "inside a run": each.inside.value,
                        "95 % interval, inside a run": interval(each.inside.low, each.inside.high),
                        "seen in training": "yes" if each.seen else "no",
                    }
                    for each in found
                ],
            )
        ],
        [
            charts.lanes(
                f"explained_{group}{'_inside' if inside else ''}",
                f"R² of {title}, {name}, with 95 % intervals",
                f"R², {name} (below -1 drawn at -1)",
                _lanes([each for each in charted if (each.what in TIMES) == of_times], inside=inside),
                zero=True,
            )
            for group, title, of_times in (
                ("times", "TTFT and TPOT", True),
                ("other", "KV use and lengths", False),
            )
            for name, inside in (("of all variance", False), ("of the variance inside a run", True))
            if any((each.what in TIMES) == of_times for each in charted)
        ],
    )


def _lanes(found: Sequence[Explained], *, inside: bool) -> Mapping[str, Sequence[charts.Lane]]:
    rows: dict[str, list[charts.Lane]] = {}
    for each in found:
        share = each.inside if inside else each.whole
        # An axis that reaches to what is useless shows nothing of what is useful.
        values = (max(-1.0, value) for value in (share.value, *ends(share)))
        lane: charts.Lane = (each.of, *values)  # type: ignore[assignment]
        rows.setdefault(f"{each.what}, {each.source}", []).append(lane)
    return rows


def _times(train: Dataset, test: Dataset, models: Models, seed: int) -> Iterator[Explained]:
    judged = episodes(test, models.latency)
    trees = _fit_trees(list(episodes(train)), seed)
    seen_sources = _trained_on(models, "latency")
    for source, of_source in sorted(grouped(judged, attrgetter("run.source")).items()):
        actual = np.concatenate([each.actual for each in of_source])
        runs = np.repeat([each.run.id for each in of_source], [len(each.actual) for each in of_source])
        blocks = np.concatenate([blocks_of(each) for each in of_source])
        predicted = {
            title: np.concatenate([each.predicted[name][:, :, P50] for each in of_source])
            for name, title in _OURS.items()
        }
        predicted[TREES] = np.concatenate([trees(each) for each in of_source])
        seen = (LSTM, CALIBRATED) if source in seen_sources else ()
        for time, what, known in known_times(actual):
            of_time = {of: values[known, time] for of, values in predicted.items()}
            names = what, source, seen
            yield from _explained(names, actual[known, time], of_time, blocks[known], runs[known], seed)


def _memory(test: Dataset, models: Models, seed: int) -> Iterator[Explained]:
    if models.memory is None:
        return
    seen_sources = _trained_on(models, "memory")
    for source, of_source in sorted(grouped(rows_of_runs(test), attrgetter("run.source")).items()):
        actual = np.concatenate([each.actual for each in of_source])
        runs = np.repeat([each.run.id for each in of_source], [len(each.actual) for each in of_source])
        predicted = {
            MEMORY_MODEL: np.concatenate([models.memory.predict(each.features) for each in of_source]),
            CLOSED_FORM: np.concatenate([each.held for each in of_source]),
            LAST_REPORT: np.concatenate([each.reported for each in of_source]),
        }
        names = "KV use", source, (MEMORY_MODEL,) if source in seen_sources else ()
        yield from _explained(names, actual, predicted, runs, runs, seed)


def lengths_explained(data: Path, models: Models, trained_on: Set[str], seed: int) -> Iterator[Explained]:
    """Of log output tokens, by set that `data` has and the length model has not seen: what the length model explains on half
    of the prompts, and what the mean of the model's answers to the other half does. Groups of near copies are never on
    both sides. "Inside" is inside a model."""
    if models.length is None:
        return
    for name in present(data, _LENGTH_SETS):
        if name not in trained_on:
            yield from _lengths(name, read_public(data, (name,)), models.length, seed)


def _lengths(name: str, found: Dataset, model: LengthModel, seed: int) -> Iterator[Explained]:
    known, judged = (
        [each for each in part.answers if each.output_tokens and not each.capped]
        for part in split_prompts(found, 0.5, seed)
    )
    logs: dict[str, list[float]] = defaultdict(list)
    for each in known:
        logs[each.model].append(float(np.log(each.output_tokens or 1)))
    kept = set(sorted({each.prompt for each in judged})[:_MOST_PROMPTS])
    judged = [each for each in judged if each.prompt in kept and each.model in logs]
    if not judged:
        return
    actual = np.log([float(each.output_tokens or 1) for each in judged])
    groups = {each.id: each.group for each in found.prompts}
    blocks = np.array([groups[each.prompt] for each in judged])
    models = [each.model for each in judged]
    data = replace(found, answers=tuple(judged))
    predicted = {
        LENGTH_MODEL: np.log(np.maximum(quantiles(shares_of(model, answers_of(data)), 0.5), 1.0)),
        MEAN_LENGTH: np.array([np.mean(logs[each.model]) for each in judged]),
    }
    yield from _explained((LENGTHS, name, ()), actual, predicted, blocks, models, seed)


def _explained(
    names: tuple[str, str, Collection[str]],
    actual: Values,
    predicted: Mapping[str, npt.NDArray[Any]],
    blocks: npt.ArrayLike,
    groups: npt.ArrayLike,
    seed: int,
) -> Iterator[Explained]:
    """What each predictor explains. `names` are `what`, `source`, and the predictors that were trained on it; intervals are over
    resampled `blocks`."""
    what, source, seen = names
    for of, values in predicted.items():
        whole, inside = (
            with_interval(actual, values.astype(float), blocks, within, seed)
            for within in (None, places(groups))
        )
        yield Explained(what, source, of, whole, inside, of in seen)


def _trained_on(models: Models, kind: str) -> set[str]:
    """Sources of which a shipped model has seen the judged rows too. Other worlds are drawn for each seed."""
    return {row["name"] for row in models.about.get(kind, {}).get("data", ())} - {EMULATED}


def _fit_trees(found: Sequence[Episode], seed: int) -> Predict:
    """Boosted trees with the squared loss, which R^2 is about, on the target features that the LSTM's head has too; they
    correct the same estimate."""
    models = [
        grown(seed, target_rows(found, time, seed, _MOST_ROWS)[:2]) for time in range(len(TIMES))
    ]  # all requests weigh the same

    def predict(episode: Episode) -> npt.NDArray[np.float64]:
        corrections = np.stack([model.predict(episode.targets) for model in models], axis=1)
        return np.asarray(episode.corrected + corrections)

    return predict
