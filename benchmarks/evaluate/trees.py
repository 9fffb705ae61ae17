"""How well the boosted trees of `predicted_latency` predict p90 on runs that they were not trained on.

Every run is replayed on an instance of which nothing is known at its start, as it would have been served: by the
forests alone, and with the offset that they learn online. Beside them the physical estimate with its online
correction, at the same quantile. Pinball losses are of log seconds; errors |predicted p90 / actual - 1|, which a good
p90 does not bring to nothing. Intervals are from resamples of blocks of neighbours in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.evaluate.figures import Evaluation, Figure, block_bootstrap
from predictors.analytic.quantiles import TAUS
from predictors.learned.artifact import Artifact
from predictors.learned.trees import TAU, TreeModel
from predictors.training.dataset import Dataset, DatasetError
from predictors.training.replay import FORESTS, PHYSICAL, Episode, episodes

ALONE, OFFSET, ESTIMATE = "trees", "trees, offset learned online", "physical estimate"
_AT = TAUS.index(TAU)
_BLOCK, _RESAMPLES, _LEAST = 50, 300, 30


def evaluate(artifact: Artifact, test: Dataset, train: Dataset | None, *, seed: int = 1) -> Evaluation:
    """Figures on `test`, by source. `train` is not needed: the physical estimate is not fitted. Raises DatasetError
    where `test` has too few first tokens."""
    model = TreeModel.load(artifact)
    found = list(episodes(test, trees=model))
    figures: list[Figure] = []
    for source in sorted({each.run.source for each in found}):
        figures += _figures(source, [each for each in found if each.run.source == source], model, seed)
    if not figures:
        raise DatasetError(f"fewer than {_LEAST} first tokens to judge trees by")
    notes = (f"All figures are of the {TAU:.0%} quantile; pinball losses are of log seconds.",)
    return Evaluation("trees", tuple(figures), (), notes)


def _figures(part: str, found: Sequence[Episode], model: TreeModel, seed: int) -> Iterator[Figure]:
    actual = np.concatenate([each.actual for each in found])
    block = np.concatenate(
        [[f"{each.run.id} {at // _BLOCK}" for at in range(len(each.actual))] for each in found]
    )
    by_name = {
        ALONE: np.concatenate([model.predict(each.tree_rows) + each.tree_bases for each in found]),
        OFFSET: np.concatenate([each.predicted[FORESTS] for each in found]),
        ESTIMATE: np.concatenate([each.predicted[PHYSICAL][:, :, _AT] for each in found]),
    }
    for time, name in enumerate(("TTFT", "TPOT")):
        known = np.flatnonzero(np.isfinite(actual[:, time]))
        if len(known) < _LEAST:
            continue
        for of, predicted in by_name.items():
            error = actual[known, time] - predicted[known, time]
            loss = np.maximum(TAU * error, (TAU - 1.0) * error)
            # Beyond a factor of e^20 it does not matter by how much it is off.
            relative = np.abs(np.expm1(np.clip(-error, -20.0, 20.0)))
            covered = (error <= 0.0).astype(float)
            blocks = block[known].tolist()
            yield _figure(f"{name} p90 pinball loss", of, part, loss, blocks, seed)
            yield _figure(f"{name} p90 coverage", of, part, covered, blocks, seed)
            yield _figure(f"{name} p90 median relative error", of, part, relative, blocks, seed, median=True)


def _figure(
    name: str,
    of: str,
    part: str,
    values: np.ndarray,
    blocks: Sequence[str],
    seed: int,
    *,
    median: bool = False,
) -> Figure:
    middle = np.median if median else np.mean
    value, low, high = block_bootstrap(
        blocks, lambda rows: float(middle(values[rows])), resamples=_RESAMPLES, seed=seed
    )
    return Figure(name, of, part, value, "", low, high, len(values))
