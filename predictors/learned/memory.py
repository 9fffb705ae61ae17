"""The mean share of an instance's KV memory in use while it serves a request.

    memory ratio = sigmoid(logit(closed form) + correction)

The closed form (`predictors.kernels.reference.estimates.physical_estimate`) is what the known requests hold and will hold, over the
capacity. The correction is a small network over what the latency model sees of the instance and the request: more
requests will come, answers will be longer than the mean, engines keep more than they need.
"""

from __future__ import annotations

import numpy as np

from predictors.kernels import MemoryNetwork
from predictors.learned.artifact import Artifact, ArtifactError, floats, sizes
from predictors.learned.latency import TARGET_FEATURES

#: The closed form and the engine's last report of its KV use, both as logits (the closed form twice where the engine
#: reports none), whether it reports, and the latency model's target row.
MEMORY_FEATURES = ("closed_form", "reported", "kv_known", *TARGET_FEATURES)

WIDTH = 16
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


class MemoryModel:
    """A trained model; one serves all instances."""

    features = MEMORY_FEATURES

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.network = MemoryNetwork(arrays)
        self.predict = self.network.predict

    @classmethod
    def load(cls, artifact: Artifact) -> MemoryModel:
        """Raises ArtifactError for arrays of other shapes."""
        sizes(artifact, {name: ("f", shape) for name, shape in SHAPES.items()})
        arrays = floats(artifact.arrays)
        if arrays["scale"].min() <= 0.0:
            raise ArtifactError("the memory artifact has a scale that is not positive")
        return cls(arrays)
