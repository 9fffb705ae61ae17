"""The latency model as it serves, in NumPy: an LSTM over the events of an instance, a head for each request.

    state <- LSTM(state, event row)                       once an event
    encoding = state's share of the head's first layer    once an event
    quantiles = head(encoding, target row)                for each candidate of each request

The outputs are quantiles of the log residual ln(actual / corrected estimate), of TTFT and of TPOT. They never cross: the
median is one output, and each further quantile is a positive step away from the one before. `widths` stretch their
distances from the median, since on runs outside its training data a network is less sure than it claims.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.analytic.quantiles import TAUS
from predictors.learned.artifact import Artifact, ArtifactError, shaped
from predictors.learned.latency.features import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES

HIDDEN = 32
WIDTH = 128
#: Normalised features are cut at this many standard deviations, so that an unseen input stays bounded.
CLIP = 4.0
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
    """A trained model. One serves all instances; the state of each is in its `InstanceHistory`."""

    def __init__(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self.name = name
        self._event_mean, self._event_by = arrays["event_mean"], 1.0 / arrays["event_scale"]
        self._target_mean, self._target_by = arrays["target_mean"], 1.0 / arrays["target_scale"]
        # sigmoid(x) = (1 + tanh(x / 2)) / 2: with the halves in the weights all four gates are one tanh.
        half = np.full(4 * HIDDEN, 0.5, np.float32)
        half[2 * HIDDEN : 3 * HIDDEN] = 1.0
        self._by_event = np.ascontiguousarray(arrays["lstm"][: len(EVENT_FEATURES)] * half)
        self._by_hidden = np.ascontiguousarray(arrays["lstm"][len(EVENT_FEATURES) :] * half)
        self._gate_bias = arrays["lstm_bias"] * half
        self._join_encoding, self._join_bias = arrays["join_encoding"], arrays["join_bias"]
        # The first layer and the skip to the last one read the same row, so they share one product.
        self._by_target = np.ascontiguousarray(np.hstack([arrays["join_target"], arrays["skip"]]))
        self._middle, self._middle_bias = arrays["middle"], arrays["middle_bias"]
        self._last, self._last_bias = arrays["last"], arrays["last_bias"]
        self._lower, self._upper = arrays["widths"][:, 0], arrays["widths"][:, 2:]

    @classmethod
    def load(cls, artifact: Artifact) -> LatencyModel:
        """Raises ArtifactError for an artifact of another kind, other features or other shapes."""
        arrays = shaped(artifact, "latency", LATENCY_FEATURES, SHAPES)
        if min(arrays[name].min() for name in ("event_scale", "target_scale", "widths")) <= 0.0:
            raise ArtifactError("the latency artifact has a scale that is not positive")
        if (np.diff(arrays["widths"][:, 2:]) < 0.0).any():
            raise ArtifactError("the latency artifact's widths would make quantiles cross")
        return cls(artifact.name, arrays)

    def start(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(hidden state, cell, encoding) of an instance without events."""
        hidden = np.zeros(HIDDEN, np.float32)
        return hidden, np.zeros(HIDDEN, np.float32), self._join_bias

    def step(
        self, row: Sequence[float], hidden: np.ndarray, cell: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(hidden state, cell, encoding) after one more event, given its row of `EVENT_FEATURES`."""
        event = np.array(row, np.float32)
        event -= self._event_mean
        event *= self._event_by
        np.minimum(np.maximum(event, -CLIP, out=event), CLIP, out=event)
        gates = event @ self._by_event
        gates += hidden @ self._by_hidden
        gates += self._gate_bias
        np.tanh(gates, out=gates)
        candidate = gates[2 * HIDDEN : 3 * HIDDEN].copy()
        gates += 1.0
        gates *= 0.5
        cell = gates[HIDDEN : 2 * HIDDEN] * cell
        cell += gates[:HIDDEN] * candidate
        hidden = gates[3 * HIDDEN :] * np.tanh(cell)
        return hidden, cell, hidden @ self._join_encoding + self._join_bias

    def quantiles(self, encodings: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """(N, 2, 5): log residuals of TTFT and TPOT to the corrected estimate at `TAUS`, not decreasing, for
        encodings (N, WIDTH) of the candidates' instances and target rows (N, target features)."""
        rows = np.asarray(targets, np.float32) - self._target_mean
        rows *= self._target_by
        np.minimum(np.maximum(rows, -CLIP, out=rows), CLIP, out=rows)
        by_target = rows @ self._by_target
        first = by_target[:, :WIDTH]
        first += encodings
        np.maximum(first, 0.0, out=first)
        middle = first @ self._middle
        middle += self._middle_bias
        np.maximum(middle, 0.0, out=middle)
        out = middle @ self._last
        out += by_target[:, WIDTH:]
        out += self._last_bias
        found = out.reshape(-1, 2, _OUTPUTS)
        steps = np.logaddexp(0.0, found[:, :, 1:])  # softplus
        quantiles: np.ndarray = np.empty_like(found)
        median = found[:, :, 0]
        quantiles[:, :, 1] = median
        quantiles[:, :, 0] = median - steps[:, :, 0] * self._lower
        np.cumsum(steps[:, :, 1:], axis=2, out=steps[:, :, 1:])
        np.multiply(steps[:, :, 1:], self._upper, out=quantiles[:, :, 2:])
        quantiles[:, :, 2:] += median[:, :, None]
        return quantiles
