"""How good the length predictor is on prompts that it was not trained on, beside simple ones (docs/evaluation.md has the
figures).

An answer that was cut at its cap is missed by what the median is below it, and not at all by one above it; pinball losses
are over answers that were not cut, and coverage counts a cut answer as far as it was seen (`share_up_to`). "llama and qwen"
are the families that the predictor is made for. Baselines know each prompt's task, and each model has its own fit; the
predictor never sees the task.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from benchmarks.evaluate.figures import WHOLE, Curve, Evaluation, Figure, Resampled, pinball, share_up_to
from benchmarks.evaluate.length_baselines import (
    PROBABILITIES,
    YARDSTICK,
    Answers,
    absolute_errors,
    baselines,
    task_of,
)
from benchmarks.evaluate.picks import check_apart
from predictors.kernels import served_tables
from predictors.kernels.length_bins import EDGES
from predictors.learned.artifact import Artifact
from predictors.learned.length_model import LengthModel, quantiles
from predictors.learned.names import model_key
from predictors.online.model_lengths import ModelLengths
from predictors.training.dataset import Dataset, DatasetError

OURS = "LSTM"
MAIN_FAMILIES = ("llama", "qwen")
MAIN = "llama and qwen"
HISTOGRAM = "running histogram"
#: Answers of a model that are learned from before the first one counts as served.
WARM_UP = 50

_INTERVAL = (0.1, 0.9)
_NOMINAL = tuple(np.linspace(0.05, 0.95, 19).round(2))
_BUCKETS = (1, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: Rows that a part, a cell of model and task, or a bucket must have to be reported.
_LEAST_OF_PART, _LEAST_OF_CELL, _LEAST_OF_BUCKET = 100, 10, 30
_RESAMPLES, _SPEARMAN_RESAMPLES = 1000, 200


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """All figures on `test`; `train` (what the artifact was trained on) is what baselines are fitted on, None for
    none. Raises DatasetError for prompts of `test` that have near copies in `train`, or without lengths."""
    check_apart(test, train)
    model = LengthModel.load(artifact)
    answers = answers_of(test)
    shares = shares_of(model, answers)
    predicted = {OURS: np.stack([quantiles(shares, each) for each in PROBABILITIES], axis=1)}
    if train is not None:
        predicted |= baselines(answers_of(train), answers, seed)
    online = dict(zip((OURS, HISTOGRAM), served_medians(answers, shares, seed), strict=True))
    figures = [
        figure
        for part, rows in _parts(answers).items()
        for figure in _Part(part, answers.part(rows), shares[rows], seed).figures(
            {who: each[rows] for who, each in predicted.items()},
            {who: each[rows] for who, each in online.items()},
        )
    ]
    curves = [*_calibration(answers, shares), *_by_bucket(answers, predicted)]
    return Evaluation("length", tuple(figures), tuple(curves), tuple(_notes(answers, predicted)))


def answers_of(data: Dataset) -> Answers:
    """The answers with a length. Raises DatasetError if there are none."""
    used = [each for each in data.answers if each.output_tokens is not None]
    if not used:
        raise DatasetError("no answer in the data has a length (output_tokens)")
    row = {each.id: index for index, each in enumerate(data.prompts)}
    return Answers(
        data.prompts,
        np.array([row[each.prompt] for each in used]),
        np.array([model_key(each.model) for each in used]),
        np.array([each.family or "" for each in used]),
        np.array([each.output_tokens for each in used], float),
        np.array([each.capped for each in used]),
    )


def shares_of(model: LengthModel, answers: Answers) -> np.ndarray:
    """What a model predicts of each answer: (answers, bins)."""
    fleet, columns = np.unique((answers.model, answers.family), axis=1, return_inverse=True)
    candidates = [(name, family or None) for name, family in fleet.T.tolist()]
    order = np.argsort(answers.prompt, kind="stable")
    prompts, starts = np.unique(answers.prompt[order], return_index=True)
    found = [
        model.shares(answers.prompts[prompt].features, candidates)[columns[rows]]
        for prompt, rows in zip(prompts, np.split(order, starts[1:]), strict=True)
    ]
    return np.asarray(np.concatenate(found)[np.argsort(order)])


def served_medians(answers: Answers, shares: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What the gateway would have predicted while it served the answers: ((answers,) medians of the trained model's
    distributions `shares` (answers, bins), corrected by the answers so far; of the running histogram of the model's
    answers). On prompts that the trained model does not know, the first should fall back to the second. NaN for the first
    `WARM_UP` answers of each model. Answers come in an order drawn at random."""
    served, histogram = (np.full(len(answers.tokens), np.nan) for _ in range(2))
    order = np.random.default_rng(seed).permutation(len(answers.tokens))
    of_model: dict[str, ModelLengths] = {}
    for row in order.tolist():
        model = str(answers.model[row])
        lengths = of_model.setdefault(model, ModelLengths(None))
        if lengths.output.observed >= WARM_UP:
            (table,) = served_tables([lengths.learned], shares[row][None], [lengths.output])
            served[row] = table.p50
            histogram[row] = lengths.output.p50
        tokens = round(answers.tokens[row])
        lengths.observe_output(tokens, tokens if answers.capped[row] else None, 1, shares[row])
    return served, histogram


def _parts(answers: Answers) -> dict[str, np.ndarray]:
    """Row indices by the part's name, the headline first."""
    sources, families = answers.of_prompts("source"), answers.family
    main = np.isin(families, MAIN_FAMILIES)
    masks = {WHOLE: np.ones(len(families), bool), MAIN: main}
    masks |= {f"family {each}": families == each for each in np.unique(families) if each}
    masks |= {f"source {each}": sources == each for each in np.unique(sources)}
    masks |= {f"source {each}, {MAIN}": main & (sources == each) for each in np.unique(sources)}
    least = min(_LEAST_OF_PART, len(families))
    return {name: np.flatnonzero(mask) for name, mask in masks.items() if mask.sum() >= least}


class _Part:
    """Figures of one part of the answers."""

    def __init__(self, name: str, answers: Answers, shares: np.ndarray, seed: int) -> None:
        self._name, self._answers, self._shares = name, answers, shares
        self._resampled = Resampled(answers.of_prompts("group"), _RESAMPLES, seed)

    def figures(self, predicted: dict[str, np.ndarray], online: dict[str, np.ndarray]) -> list[Figure]:
        """MAE, pinball losses, coverage and Spearman of each predictor, and our differences from each. `online` are the
        medians of `served_medians`."""
        answers, whole = self._answers, ~self._answers.capped
        errors = {who: absolute_errors(answers, each[:, 0]) for who, each in predicted.items()}
        figures = self._means("MAE", "tokens", errors)
        for who, theirs in errors.items():
            if who != OURS:
                found = self._resampled.ratio(errors[OURS] - theirs, theirs)
                figures.append(self._figure("MAE, relative", f"{OURS} - {who}", "", found))
        for column, probability in enumerate(PROBABILITIES):
            losses = {
                who: pinball(answers.tokens, each[:, column], probability) for who, each in predicted.items()
            }
            if whole.any():
                figures += self._means(f"pinball loss at {probability}", "tokens", losses, whole)
        coverage = self._coverage()
        if not np.isnan(coverage[0]):
            figures.append(self._figure("coverage of 80 % intervals", OURS, "", coverage))
        warm = ~np.isnan(online[OURS])
        if warm.any():
            errors = {who: absolute_errors(answers, np.nan_to_num(each)) for who, each in online.items()}
            figures += self._means(f"MAE served, after {WARM_UP} answers", "tokens", errors, warm)
        return figures + self._spearman({who: each[:, 0] for who, each in predicted.items()})

    def _coverage(self) -> np.ndarray:
        """(1 + resamples,)."""
        at = _predicted_share(self._answers, self._shares)
        order = np.argsort(at)  # once: it is quicker to sort again what is sorted
        at, capped, group = at[order], self._answers.capped[order], self._resampled.group[order]
        found = [share_up_to(_INTERVAL, at, capped, each[group]) for each in self._resampled.draws]
        return np.diff(found, axis=1)[:, 0]

    def _means(
        self, name: str, unit: str, values: dict[str, np.ndarray], rows: np.ndarray | None = None
    ) -> list[Figure]:
        """Mean of each over some rows (None: all), and of our differences."""
        ours = values[OURS]
        shown = values | {f"{OURS} - {who}": ours - each for who, each in values.items() if who != OURS}
        counted = np.ones(len(ours)) if rows is None else rows.astype(float)
        return [
            self._figure(name, who, unit, self._resampled.ratio(each * counted, counted), int(counted.sum()))
            for who, each in shown.items()
        ]

    def _figure(self, name: str, who: str, unit: str, found: np.ndarray, rows: int | None = None) -> Figure:
        value, resampled = float(found[0]), found[1:][~np.isnan(found[1:])]
        low, high = map(float, np.quantile(resampled, (0.025, 0.975))) if len(resampled) else (None, None)
        rows = len(self._resampled.group) if rows is None else rows
        return Figure(name, who, self._name, value, unit, low, high, rows)

    def _spearman(self, predicted: dict[str, np.ndarray]) -> list[Figure]:
        """Mean over cells of model and task, weighted by rows. Resamples weigh the ranks of all rows."""
        tasks = np.array([task_of(each) for each in self._answers.prompts])[self._answers.prompt]
        cells = np.char.add(np.char.add(self._answers.model.astype(str), "\n"), tasks)
        _, cell, count = np.unique(cells, return_inverse=True, return_counts=True)
        kept = count[cell] >= _LEAST_OF_CELL
        if not kept.any():
            return []
        cell = np.unique(cell[kept], return_inverse=True)[1]
        actual = _ranks(self._answers.tokens[kept], cell)
        weights = self._resampled.draws[: _SPEARMAN_RESAMPLES + 1][:, self._resampled.group[kept]]
        found = {}
        for who, each in predicted.items():
            ranks = _ranks(each[kept], cell)
            found[who] = np.array([_mean_correlation(ranks, actual, weight, cell) for weight in weights])
        found |= {f"{OURS} - {who}": found[OURS] - each for who, each in found.items() if who != OURS}
        name = "Spearman within model and task"
        return [self._figure(name, who, "", each, int(kept.sum())) for who, each in found.items()]


def _ranks(values: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Ranks within each cell, ties in the middle."""
    found = np.empty(len(values))
    order = np.argsort(cell, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        found[rows] = rankdata(values[rows])
    return found


def _mean_correlation(a: np.ndarray, b: np.ndarray, weights: np.ndarray, cell: np.ndarray) -> float:
    """Mean over cells of the weighted correlation, cells weighted by their rows; 0 where one of both is constant."""
    size = int(cell.max()) + 1

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(cell, weights * values, size)

    rows = total(np.ones_like(a))
    some = np.maximum(rows, 1e-12)
    mean_a, mean_b = total(a) / some, total(b) / some
    variance_a = total(a * a) / some - mean_a**2
    variance_b = total(b * b) / some - mean_b**2
    product = variance_a * variance_b
    known = product > 1e-9
    correlation = np.where(
        known, (total(a * b) / some - mean_a * mean_b) / np.sqrt(np.where(known, product, 1.0)), 0.0
    )
    return float((rows * correlation).sum() / max(rows.sum(), 1e-12))


# --- curves and notes -----------------------------------------------------------------------------------
def _calibration(answers: Answers, shares: np.ndarray) -> list[Curve]:
    """Nominal against actual share of answers below each quantile, as far as answers were seen."""
    curves = []
    for part in (WHOLE, *MAIN_FAMILIES):
        rows = (answers.family == part) | (part == WHOLE)
        if rows.sum() < _LEAST_OF_BUCKET:
            continue
        part_of = answers.part(np.flatnonzero(rows))
        at = _predicted_share(part_of, shares[rows])
        actual = share_up_to(_NOMINAL, at, part_of.capped, np.ones(len(at)))
        known = ~np.isnan(actual)
        if not known.any():
            continue
        x, y = np.array(_NOMINAL)[known], actual[known]
        curves.append(Curve("Calibration", part, "nominal", "actual", tuple(x.tolist()), tuple(y.tolist())))
    return curves


def _predicted_share(answers: Answers, shares: np.ndarray) -> np.ndarray:
    """(answers,): the predicted probability of at most this length, the inverse of `quantiles`."""
    edges, row = np.array(EDGES), np.arange(len(shares))
    at = np.clip(np.searchsorted(edges, answers.tokens, side="right") - 1, 0, shares.shape[1] - 1)
    inside = np.clip((answers.tokens - edges[at]) / (edges[at + 1] - edges[at]), 0.0, 1.0)
    return np.asarray(np.cumsum(shares, axis=1)[row, at] - (1.0 - inside) * shares[row, at])


def _by_bucket(answers: Answers, predicted: dict[str, np.ndarray]) -> list[Curve]:
    bucket = np.searchsorted(_BUCKETS, answers.tokens, side="right") - 1
    count = np.bincount(bucket, minlength=len(_BUCKETS))
    enough = np.flatnonzero(count >= _LEAST_OF_BUCKET)
    middles = tuple(float(_BUCKETS[each] * 2**0.5) for each in enough)
    curves = []
    for who, each in predicted.items():
        errors = absolute_errors(answers, each[:, 0])
        means = np.bincount(bucket, errors, len(_BUCKETS))[enough] / count[enough]
        curves.append(
            Curve("Error by length", who, "actual tokens", "MAE, tokens", middles, tuple(means.tolist()))
        )
    return curves


def _notes(answers: Answers, predicted: dict[str, np.ndarray]) -> list[str]:
    notes = [
        f"{len(answers.tokens)} answers of {len(np.unique(answers.model))} models to "
        f"{len(np.unique(answers.prompt))} prompts; {int(answers.capped.sum())} were cut at their cap: they are "
        "missed only by predictions below it, and coverage takes them as seen up to there."
    ]
    if YARDSTICK in predicted:
        notes.append(f"The yardstick is {YARDSTICK}; nothing of it was chosen on these answers.")
    return notes
