"""The latency model: an LSTM over the events of an instance, a head for each request (NumPy only; the networks are
`predictors.kernels.reference.latency_networks`).

Its inputs are one row for each event of an instance, and one for each request that may join it. Everything is relative to the
instance's own scale: times are divided by the corrected estimate of the request or by one engine step. So an engine that is a
hundred times slower gives the same rows. Prompt tokens are rounded to quarters of a factor of two, which is too coarse to
recognise a prompt.
"""

from __future__ import annotations

import numpy as np

from predictors.kernels import LatencyNetwork
from predictors.kernels.levels import TAUS
from predictors.learned.artifact import Artifact, ArtifactError, floats, sizes

EVENT_FEATURES = (
    "event.dispatched",
    "event.first_token",
    "event.ended",
    "event.lost",
    "event.reported",
    "event.gap",  # log steps since the event before
    "event.size",  # log tokens: prompt of a dispatch, answer of an end
    "event.steps",  # log steps: corrected TTFT of a dispatch, TTFT of a first token, TPOT of an end
    "event.cached",  # share of its prompt
    "event.error",  # ln(actual / corrected estimate) of TTFT or TPOT
    "event.in_flight",
    "event.awaiting",
    "event.pending_steps",
    "event.oldest_steps",
    "event.context_tokens",
    "event.running",
    "event.waiting",
    "event.kv_usage",
)
TARGET_FEATURES = (
    *("ttft_steps", "tpot_steps", "ttft_bias", "ttft_count", "tpot_bias", "tpot_count"),
    *("queue_ahead", "seats_taken", "batch_middle", "batch_large"),
    *("prompt_tokens", "cached_share", "output_tokens"),
    *("in_flight", "awaiting", "pending_tokens", "context_tokens"),
    *("running", "waiting", "kv_usage", "report_age"),
    *("oldest_age", "middle_age", "first_token_age", "wait_by_8", "wait_by_32", "wait_by_ends"),
    *("arrival_gap", "arrivals_by_first_tokens", "first_tokens_by_ends"),
    *("ttft_seen", "ttft_last", "ttft_median", "ttft_low", "ttft_high", "ttft_other"),
    *("ttft_error_last", "ttft_error_median", "ttft_error_low", "ttft_error_high"),
    *(
        "tpot_seen",
        "tpot_last",
        "tpot_median",
        "tpot_low",
        "tpot_high",
        "tpot_error_median",
        "tpot_error_last",
    ),
)
LATENCY_FEATURES = EVENT_FEATURES + TARGET_FEATURES

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
