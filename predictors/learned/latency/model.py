"""The latency model as it serves: an LSTM over the events of an instance, a head for each request.

The networks are `predictors.kernels.reference.latency_networks`.
"""

from __future__ import annotations

import numpy as np

from predictors.kernels import LatencyNetwork
from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact, ArtifactError, floats, sizes
from predictors.learned.latency.features import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES

HIDDEN = 32
WIDTH = 128
#: Outputs of the head for one time: the median and the steps from it.
_OUTPUTS = len(TAUS)

#: Arrays of the artifact and their shapes.
SHAPES = {
    "event_mean": (len(EVENT_FEATURES),),
    "event_scale": (len(EVENT_FEATURES),),
    "target_mean": (len(TARGET_FEATURES),),
    "target_scale": (len(TARGET_FEATURES),),
    "lstm": (len(EVENT_FEATURES) + HIDDEN, 4 * HIDDEN),
    "lstm_bias": (4 * HIDDEN,),
    "join_encoding": (HIDDEN, WIDTH),
    "join_target": (len(TARGET_FEATURES), WIDTH),
    "join_bias": (WIDTH,),
    "middle": (WIDTH, WIDTH),
    "middle_bias": (WIDTH,),
    "last": (WIDTH, 2 * _OUTPUTS),
    "skip": (len(TARGET_FEATURES), 2 * _OUTPUTS),
    "last_bias": (2 * _OUTPUTS,),
    "widths": (2, _OUTPUTS),
}


class LatencyModel:
    """A trained model. One serves all instances; the state of each is in its `InstanceHistory`, which `network` changes, and
    the quantiles are those of `head`."""

    features = LATENCY_FEATURES

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.network = self.head = network = LatencyNetwork(arrays)
        self.start = network.start
        self.step = network.step
        self.quantiles = network.quantiles

    @classmethod
    def load(cls, artifact: Artifact) -> LatencyModel:
        """Raises ArtifactError for arrays of other shapes."""
        sizes(artifact, {name: ("f", shape) for name, shape in SHAPES.items()})
        arrays = floats(artifact.arrays)
        if min(arrays[name].min() for name in ("event_scale", "target_scale", "widths")) <= 0.0:
            raise ArtifactError("the latency artifact has a scale that is not positive")
        if (np.diff(arrays["widths"][:, 2:]) < 0.0).any():
            raise ArtifactError("the latency artifact's widths would make quantiles cross")
        return cls(arrays)
