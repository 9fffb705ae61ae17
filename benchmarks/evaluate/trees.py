"""How well the boosted trees of `predicted_latency` predict p90 on runs that they were not trained on.

Every run is replayed on an instance of which nothing is known at its start, as it would have been served: by the
forests alone, and with the offset that they learn online. Beside them the physical estimate with its online
correction, at the same quantile. Errors are |predicted p90 / actual - 1|, which a good p90 does not bring to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from benchmarks.evaluate.figures import Evaluation, Figure, pinball
from benchmarks.evaluate.times import LEAST, blocks_of, figure, known_times, relative_errors
from benchmarks.workloads.published import grouped
from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact
from predictors.learned.trees import TAU, TreeModel
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.replay import FORESTS, PHYSICAL, Episode, episodes

ALONE, OFFSET, ESTIMATE = "trees", "trees, offset learned online", "physical estimate"
_AT = TAUS.index(TAU)


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """Figures on `test`, by source. `train` is not needed: the physical estimate is not fitted. Raises DatasetError
    where `test` has too few first tokens."""
    model = TreeModel.load(artifact)
    found = list(episodes(test, trees=model))
    figures: list[Figure] = []
    for source, of_source in sorted(grouped(found, attrgetter("run.source")).items()):
        figures += _figures(source, of_source, model, seed)
    if not figures:
        raise DatasetError(f"fewer than {LEAST} first tokens to judge trees by")
    notes = (f"All figures are of the {TAU:.0%} quantile; pinball losses are of log seconds.",)
    return Evaluation("trees", tuple(figures), (), notes)


def _figures(part: str, found: Sequence[Episode], model: TreeModel, seed: int) -> Iterator[Figure]:
    actual = np.concatenate([each.actual for each in found])
    block = np.concatenate([blocks_of(each) for each in found])
    by_name = {
        ALONE: np.concatenate([model.predict(each.tree_rows) + each.tree_bases for each in found]),
        OFFSET: np.concatenate([each.predicted[FORESTS] for each in found]),
        ESTIMATE: np.concatenate([each.predicted[PHYSICAL][:, :, _AT] for each in found]),
    }
    for time, name, known in known_times(actual):
        here, blocks = actual[known, time], block[known]
        for of, all_predicted in by_name.items():
            predicted = all_predicted[known, time]
            covered = (here <= predicted).astype(float)
            errors = relative_errors(here, predicted)
            yield figure(f"{name} p90 pinball loss", of, part, pinball(here, predicted, TAU), blocks, seed)
            yield figure(f"{name} p90 coverage", of, part, covered, blocks, seed)
            yield figure(f"{name} p90 median relative error", of, part, errors, blocks, seed, np.median)
