"""Length predictors of the Llama and Qwen families, on published answers: by grouped folds, without parts of the prompt, on few
prompts, and on a family or a set that they were not fitted to.

Near copies of a prompt are in one fold. Figures are those of `headway evaluate` (`benchmarks.evaluate.length`). Folds are judged
apart; their mean has the interval of independent parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.datasets.public import present, read_public
from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.evaluate.length import MAIN_FAMILIES, OURS, WARM_UP, evaluate
from benchmarks.experiments import charts
from benchmarks.experiments.report import Chart, Results, Section, Value, interval
from benchmarks.terminal import Progress, prefixed
from predictors.learned.artifact import Artifact
from predictors.training.dataset import Dataset, Prompt, fraction_of
from predictors.training.length import train
from predictors.training.length_net import LengthSettings
from router.core.types import PromptFeatures

SETS = ("zeroeval", "alpaca_eval")
ERROR, ORDER, COVERED = "MAE", "Spearman within model and task", "coverage of 80 % intervals"
ONLINE = f"MAE served, after {WARM_UP} answers"
_FOLDS = 3
#: Prompts of a set at most, and the least steps of a fit: what is measured is fitted a dozen times.
_MOST_PROMPTS, _SETTINGS = 600, LengthSettings(least_steps=150)
#: The parts of the training prompts for the learning curve.
_PARTS = (0.25, 0.5)
Change = Callable[[PromptFeatures], PromptFeatures]
#: What is left of a prompt.
FEATURES: Mapping[str, Change] = {
    "words without their order": lambda each: each._replace(
        head=tuple(sorted(each.head)), tail=tuple(sorted(each.tail))
    ),
    "counts only": lambda each: each._replace(head=(), tail=()),
    "nothing of the prompt": lambda each: PromptFeatures((), (), (0,) * len(each.counts)),
}


class LengthTraining:
    """Answers of both families in folds. `artifact` is fitted to all folds but the first."""

    def __init__(self, data: Path, seed: int, progress: Progress) -> None:
        """From those of `SETS` that `data` has."""
        self.seed = seed
        self._progress = prefixed(progress, "lengths: ")
        self.sets = present(data, SETS)
        read = read_public(data, self.sets)
        kept = {each.id for name in self.sets for each in _drawn(read.prompts, name, seed)}
        both = read.keep(prompt=lambda each: each.id in kept)
        self.data = replace(
            both, answers=tuple(each for each in both.answers if each.family in MAIN_FAMILIES)
        )
        self.folds = [self._fold(at) for at in range(_FOLDS)]
        self.artifact = self._fit(self.folds[0][0], calibrated=True)

    def _fold(self, at: int) -> tuple[Dataset, Dataset]:
        """(what is fitted to, what is judged)."""

        def judged(prompt: Prompt) -> bool:
            return int(fraction_of(prompt.group, self.seed) * _FOLDS) == at

        return self.data.keep(prompt=lambda each: not judged(each)), self.data.keep(prompt=judged)

    def _fit(self, data: Dataset, *, calibrated: bool = False) -> Artifact:
        settings = _SETTINGS if calibrated else replace(_SETTINGS, calibration_parts=1)
        return train(data, seed=self.seed, settings=settings, progress=self._progress)

    # --- sections ---------------------------------------------------------------------------------------
    @property
    def _parts(self) -> list[str]:
        """What figures are given for, as `evaluate` names it."""
        return [*(f"family {each}" for each in MAIN_FAMILIES), *(f"source {each}" for each in self.sets)]

    def families(self) -> Section:
        """Both families and both sets by grouped folds, beside what is simpler."""
        found = [
            evaluate(self._fit(to, calibrated=True) if at else self.artifact, test, to, seed=self.seed)
            for at, (to, test) in enumerate(self.folds)
        ]
        rows: list[list[Value]] = []
        lanes: dict[str, list[tuple[str, Figure]]] = {}
        for part in self._parts:
            for measure in (ERROR, ONLINE, ORDER, COVERED):
                for of in dict.fromkeys(each.of for each in found[0].figures if each.name == measure):
                    mean = over_folds([_figure(each, measure, of, part) for each in found])
                    if mean is not None:
                        rows.append([part, measure, of, mean.rows, mean.value, _interval(mean)])
                        if measure == ERROR and not mean.is_difference:
                            lanes.setdefault(part, []).append((of, mean))
        return Section(
            "Lengths: Llama and Qwen",
            [
                f"{len(self.data.answers):,} answers of Llama and Qwen models to {len(self.data.prompts):,} prompts of"
                f" {' and '.join(self.sets)}, in {_FOLDS} folds. Near copies of a prompt are in one fold. One predictor is"
                " fitted to both families and all sets. The simpler ones are fitted for each model, and know each prompt's task.",
                f"“{ONLINE}” is what the gateway would predict after so many answers of a model, beside the histogram of that"
                " model's answers. The LSTM is better where its difference is below 0, of the rank correlation above 0.",
            ],
            [
                Results(
                    "Length predictors by family and set, over the folds",
                    ("part", "measure", "of", "answers", "value", "95 % interval"),
                    rows,
                )
            ],
            _chart("length_families", "Mean absolute error of the median length", lanes),
        )

    def parts(self) -> Section:
        """What is left out: features, calibration, most of the prompts, a family, a set."""
        rows: list[list[Value]] = []
        lanes: dict[str, list[tuple[str, Figure]]] = {}
        for name, artifact, test in self._partial():
            found = evaluate(artifact, test, None, seed=self.seed)
            for part in self._parts:
                error, *others = (
                    _figure(found, each, OURS, part) for each in (ERROR, ORDER, COVERED, ONLINE)
                )
                if error is not None:
                    values = [None if each is None else each.value for each in others]
                    rows.append([name, part, error.value, _interval(error), *values])
                    lanes.setdefault(name, []).append((part, error))
        return Section(
            "Lengths: features, calibration, learning curve and transfer",
            [
                "One fold. Each row but the first two is fitted anew, without calibrated widths. All are judged on the same"
                f" answers. “{ONLINE}” has the online correction, which falls back to the model's own histogram.",
                "A family that was not fitted to is served as an unknown model.",
            ],
            [
                Results(
                    "The length predictor without parts of its data",
                    ("fitted to", "judged on", "MAE (tokens)", "95 % interval", ORDER, COVERED, ONLINE),
                    rows,
                )
            ],
            _chart("length_parts", "Mean absolute error of the LSTM's median length", lanes),
        )

    def _partial(self) -> Iterator[tuple[str, Artifact, Dataset]]:
        """(what it was fitted to, the predictor, what it is judged on)."""
        to, test = self.folds[0]
        arrays = self.artifact.arrays
        plain = {name: np.ones_like(arrays[name]) for name in ("model_spread", "family_spread")}
        yield "all, widths calibrated", self.artifact, test
        yield "all", replace(self.artifact, arrays={**arrays, **plain}), test
        for name, change in FEATURES.items():
            yield name, self._fit(_changed(to, change)), _changed(test, change)
        for share in _PARTS:
            few = to.keep(prompt=lambda each, most=share: fraction_of(each.group, self.seed + 1) < most)  # type: ignore[misc]
            yield f"{len(few.prompts):,} of {len(to.prompts):,} prompts", self._fit(few), test
        for family in MAIN_FAMILIES:
            other = tuple(each for each in to.answers if each.family != family)
            yield f"no model of the family {family}", self._fit(replace(to, answers=other)), test
        for name in self.sets if len(self.sets) > 1 else ():
            other_sets = to.keep(prompt=lambda each, out=name: each.source != out)  # type: ignore[misc]
            yield f"no prompt of {name}", self._fit(other_sets), test

    def unseen_texts(self, data: Path) -> frozenset[str]:
        """Texts of ZeroEval's prompts of which no near copy was fitted to."""
        seen = {each.group for each in self.folds[0][0].prompts}
        return frozenset(
            each.text or "" for each in read_public(data, SETS[:1]).prompts if each.group not in seen
        )


def over_folds(figures: Sequence[Figure | None]) -> Figure | None:
    """The mean of a figure over folds, which have no row in common; None if a fold lacks it."""
    known = [each for each in figures if each is not None and each.low is not None and each.high is not None]
    if len(known) < len(figures):
        return None
    half = math.sqrt(sum(((each.high or 0.0) - (each.low or 0.0)) ** 2 for each in known)) / (2 * len(known))
    mean = math.fsum(each.value for each in known) / len(known)
    return replace(
        known[0], value=mean, low=mean - half, high=mean + half, rows=sum(each.rows for each in known)
    )


def _chart(name: str, caption: str, rows: Mapping[str, Sequence[tuple[str, Figure]]]) -> list[Chart]:
    return [charts.of_figures(name, caption, "mean absolute error (tokens, less is better)", rows)]


def _figure(found: Evaluation, name: str, of: str, part: str) -> Figure | None:
    return next((each for each in found.figures if (each.name, each.of, each.part) == (name, of, part)), None)


def _interval(each: Figure) -> str | None:
    return interval(each.low, each.high, ".3g")


def _drawn(prompts: Sequence[Prompt], name: str, seed: int) -> list[Prompt]:
    """At most so many prompts of a set, drawn by group."""
    of_set = [each for each in prompts if each.source == name]
    return sorted(of_set, key=lambda each: (fraction_of(each.group, seed + 2), each.id))[:_MOST_PROMPTS]


def _changed(data: Dataset, change: Change) -> Dataset:
    return replace(
        data, prompts=tuple(replace(each, features=change(each.features)) for each in data.prompts)
    )
