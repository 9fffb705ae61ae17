"""The experts of the relevance model (`predictors.learned.relevance`): from the vector of a prompt to qualities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.kernels.reference.prompt_encoder import COUNTS

#: The weight of a prototype falls by this for each unit of cosine below the nearest one's.
SHARPNESS = 20.0
#: With this many prompts near it, a prototype's departure counts half.
HALF_EVIDENCE = 5.0


@dataclass(frozen=True, slots=True)
class Prototypes:
    """Centres of similar prompts. `counts` are the prompts near each, by scale."""

    centres: np.ndarray  # (K, D) float32, of length 1
    counts: np.ndarray  # (K, scales) float32
    near: tuple[float, float]  # nearness at which a prompt is not trusted at all, and fully trusted

    def nearness(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, int]:
        """(weight of each prototype, at most 1, (K,); nearby prompts of each scale, (scales,); trust that the prompt is
        like the training data, in [0, 1]; index of the nearest prototype)."""
        size = self.centres.shape[1]
        likeness = self.centres @ vector[:size]
        nearest = int(likeness.argmax())
        most = float(likeness[nearest])
        weights = np.exp(SHARPNESS * (likeness - most))
        low, high = self.near
        trust = (most * float(vector[size + COUNTS]) - low) / (high - low)
        return weights, weights @ self.counts, min(max(trust, 0.0), 1.0), nearest


@dataclass(frozen=True, slots=True)
class RelevanceHeads:
    """One scale on which a fleet may be judged, with the arrays of the M known models that a decision needs."""

    scale: int
    scales: np.ndarray  # of their heads
    out: np.ndarray  # (M, O + T)
    bias: np.ndarray
    departures: np.ndarray  # (M, K), times the prompts of the head's scale near the prototype
    prior: np.ndarray
    shifts: np.ndarray  # what moves each over to the option's scale


class AllHeads:
    """The arrays of all heads, by the names of `predictors.learned.relevance`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        # The network and the tasks side by side share one product.
        self._out = np.ascontiguousarray(np.concatenate([arrays["out"], arrays["task_departures"]]).T)
        self._out_bias = arrays["out_bias"]
        self._departures = np.ascontiguousarray(arrays["departures"].T)
        self._counts = arrays["centre_counts"]
        self._prior = arrays["head_prior"]
        self._scale = arrays["head_scale"].astype(np.int64)
        self._shift = arrays["scale_shift"]

    def of(self, scale: int, heads: np.ndarray) -> RelevanceHeads:
        """The heads (M,) of some models, on a scale."""
        scales = self._scale[heads]
        return RelevanceHeads(
            scale,
            scales,
            self._out[heads],
            self._out_bias[heads],
            self._departures[heads] * self._counts.T[scales],
            self._prior[heads],
            self._shift[scales] - self._shift[scale],
        )


class RelevanceNetwork:
    """The experts with their weights, by the names of `predictors.learned.relevance`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        low, high = arrays["near"].tolist()
        self.prototypes = Prototypes(arrays["centres"], arrays["centre_counts"], (low, high))
        # The network and the tasks side by side share one product each way.
        self.units = len(arrays["hidden_bias"])
        self.given = np.concatenate([arrays["hidden"], arrays["task_weights"]], axis=1)
        self.given_bias = np.concatenate([arrays["hidden_bias"], arrays["task_bias"]])
        self.all_heads = AllHeads(arrays)
        self.heads = self.all_heads.of

    def quality(
        self, vector: np.ndarray, options: Sequence[RelevanceHeads]
    ) -> tuple[np.ndarray, np.ndarray, int, float]:
        """(mean quality in [0, 1] of M models, its standard deviation, index of the nearest prototype, trust in [0, 1] that
        the prompt is like the training data). `options` have the heads of the same models on several scales: the scale of
        most nearby prompts counts; without one M is 0."""
        weights, near_by, trust, nearest = self.prototypes.nearness(vector)
        if not options:
            return np.empty(0), np.empty(0), nearest, trust
        option = max(options, key=lambda each: near_by[each.scale])
        near = np.maximum(near_by[option.scales], 1e-9)
        first_score, units = len(self.given), self.units
        found = vector[:first_score] @ self.given + self.given_bias
        task = np.exp(found[units:] - found[units:].max())
        task /= task.sum()
        last_input = np.concatenate([np.maximum(found[:units], 0.0), vector[first_score:], task])
        departure = option.out @ last_input + option.bias
        departure += option.departures @ weights / near
        departure *= trust * near / (near + HALF_EVIDENCE)
        quality = 1.0 / (1.0 + np.exp(-(option.prior + departure + option.shifts)))
        return quality, np.sqrt(quality * (1.0 - quality) / (trust * near + 2.0)), nearest, trust
