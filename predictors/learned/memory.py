"""The mean share of an instance's KV memory in use while it serves a request.

    memory ratio = sigmoid(logit(closed form) + correction)

The closed form (`predictors.analytic.physical.estimate`) is what the known requests hold and will hold, over the
capacity. The correction is a small network over what the latency model sees of the instance and the request: more
requests will come, answers will be longer than the mean, engines keep more than they need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.learned.artifact import Artifact, ArtifactError, shaped
from predictors.learned.latency.features import TARGET_FEATURES

#: The closed form and the engine's last report of its KV use, both as logits (the closed form twice where the engine
#: reports none), whether it reports, and the latency model's target row.
MEMORY_FEATURES = ("closed_form", "reported", "kv_known", *TARGET_FEATURES)

WIDTH = 16
#: Ratios nearer than this to 0 and 1 are not distinguished.
LEAST_RATIO = 0.005
#: Normalised features are cut at this many standard deviations, so that an unseen input stays bounded.
CLIP = 4.0
#: The arrays of the artifact and their shapes. `skip` bypasses the hidden layer.
SHAPES = {
    "mean": (len(MEMORY_FEATURES),),
    "scale": (len(MEMORY_FEATURES),),
    "hidden": (len(MEMORY_FEATURES), WIDTH),
    "hidden_bias": (WIDTH,),
    "last": (WIDTH,),
    "skip": (len(MEMORY_FEATURES),),
    "bias": (1,),
}


def feature_rows(held: Sequence[float], kv_usage: Sequence[float | None], targets: np.ndarray) -> np.ndarray:
    """(N, memory features) rows of N candidates, from the closed forms in [0, 1], what their engines last reported
    (`LoadReport.kv_usage`, None where an engine reports none) and their rows of `TARGET_FEATURES`."""
    rows = np.empty((len(targets), len(MEMORY_FEATURES)), np.float32)
    rows[:, 3:] = targets
    rows[:, 0] = held
    rows[:, 1] = kv_usage  # None becomes NaN
    known = rows[:, 1] == rows[:, 1]
    rows[:, 1] = np.where(known, rows[:, 1], rows[:, 0])
    rows[:, 2] = known
    ratios = rows[:, :2]
    np.minimum(np.maximum(ratios, LEAST_RATIO, out=ratios), 1.0 - LEAST_RATIO, out=ratios)
    np.log(ratios / (1.0 - ratios), out=ratios)
    return rows


class MemoryModel:
    """A trained model; one serves all instances."""

    def __init__(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self.name = name
        self._mean, self._by = arrays["mean"], 1.0 / arrays["scale"]
        # The hidden layer and the skip read the same row, so they share one product.
        self._first = np.ascontiguousarray(np.column_stack([arrays["hidden"], arrays["skip"]]))
        self._first_bias = np.concatenate([arrays["hidden_bias"], arrays["bias"]])
        self._last = arrays["last"]

    @classmethod
    def load(cls, artifact: Artifact) -> MemoryModel:
        """Raises ArtifactError for an artifact of another kind, other features or other shapes."""
        arrays = shaped(artifact, "memory", MEMORY_FEATURES, SHAPES)
        if arrays["scale"].min() <= 0.0:
            raise ArtifactError("the memory artifact has a scale that is not positive")
        return cls(artifact.name, arrays)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(N,) mean shares of KV memory in use over the requests' lives, for `feature_rows` (N, memory features)."""
        normal = rows - self._mean
        normal *= self._by
        np.minimum(np.maximum(normal, -CLIP, out=normal), CLIP, out=normal)
        first = normal @ self._first
        first += self._first_bias
        logits = np.maximum(first[:, :-1], 0.0) @ self._last
        logits += first[:, -1]
        logits += rows[:, 0]
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, which overflows nowhere.
        ratio: np.ndarray = 0.5 * np.tanh(0.5 * logits) + 0.5
        return ratio
