"""Fitting of the latency model's trees: medians of the log residuals of TTFT and TPOT, over the same target rows as the
network's head (see `latency`).

A network and trees err differently, so their mean is more accurate than either. Both serve, with weights that are learned
online (`predictors.kernels.reference.mixtures`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from predictors.learned.latency.features import TARGET_FEATURES
from predictors.learned.latency.model import DEPTH, TREES
from predictors.training.latency_network import MOST_RESIDUAL
from predictors.training.replay import Episode
from predictors.training.trees import Settings, arrays_of, fit

_SETTINGS = Settings(trees=TREES, depth=DEPTH, rate=0.08)
_MOST = np.finfo(np.float32).max


def fit_trees(found: Sequence[Episode], seed: int) -> dict[str, np.ndarray]:
    """The arrays of both forests. A request that was given up before its first token counts with the time that it
    waited."""
    targets = np.concatenate([each.targets for each in found])
    residual = np.concatenate([each.residual for each in found])
    longer_than = np.concatenate([each.longer_than - each.corrected[:, 0] for each in found])
    residual[:, 0] = np.where(np.isfinite(longer_than), longer_than, residual[:, 0])
    source = np.concatenate([np.repeat(each.run.source, len(each.targets)) for each in found])
    forests = []
    # More threads than idle cores wait for each other for minutes, and sums depend on their number.
    with threadpool_limits(limits=1):
        for time in range(2):
            known = np.isfinite(residual[:, time])
            rows, values, sources = targets[known], residual[known, time], source[known]
            if not len(rows):  # sources without output tokens have no TPOT: the estimate stays as it is
                rows, values, sources = np.zeros((2, len(TARGET_FEATURES))), np.zeros(2), np.array(["", ""])
            values = np.clip(values, -MOST_RESIDUAL, MOST_RESIDUAL)
            forests.append(fit(rows, values, sources, 0.5, _SETTINGS, seed))
    arrays = arrays_of(forests, DEPTH)
    return {
        "tree_feature": arrays["feature"],
        "tree_threshold": np.minimum(arrays["threshold"], _MOST).astype(np.float32),
        "tree_value": arrays["value"],
        "tree_base": arrays["base"].astype(np.float32),
    }
