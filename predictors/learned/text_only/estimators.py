"""The estimators: each gives every known model's quality and output tokens for one encoded prompt.

Quality and length are first split into `effect of the model + level of the prompt` (in log-odds, and in logarithms of
tokens). An estimator falls back to that sum where a model was not seen on similar prompts. It never falls back to a
quality or a length of 0, which would make an unknown model look cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: Codes of `Index.quality` and `Index.log_tokens`: 255 is missing, else the value in steps.
MISSING = 255
QUALITY_STEP = 1.0 / 254.0
LOG_TOKENS_STEP = 10.0 / 254.0
#: The range of every estimate.
_LEAST_QUALITY, _MOST_QUALITY = 0.01, 0.99


#: (quality, output tokens) of all H heads for one vector of the encoder; NaN tokens where no length of a model is known.
Estimator = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Effects:
    """The values without a prompt: `quality` (H,) in log-odds and `log_tokens` (H,), NaN without any length, at a
    prompt of level 0. `spread` (H,) adds half the variance of log length."""

    quality: np.ndarray
    log_tokens: np.ndarray
    spread: np.ndarray

    def at(self, level: float, log_level: float) -> tuple[np.ndarray, np.ndarray]:
        """(quality, tokens) of a prompt of these levels."""
        return sigmoid(self.quality + level), np.exp(self.log_tokens + log_level + self.spread)


@dataclass(frozen=True, slots=True)
class Index:
    """Training prompts: `vectors` (I, D) of length 1; `quality` and `log_tokens` (I, H) as codes; `levels` and
    `log_levels` (I,) of the prompts."""

    vectors: np.ndarray
    quality: np.ndarray
    log_tokens: np.ndarray
    levels: np.ndarray
    log_levels: np.ndarray


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The mean of the `count` most similar prompts by cosine, weighted by `sharpness` (0: equal weights). The model's
    own mean at such prompts counts as `leaning` more neighbours. A model without values at the neighbours gets only
    that mean."""

    index: Index
    effects: Effects
    count: int
    sharpness: float
    leaning: float

    def __call__(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = self.index
        near, weights = _nearest(index.vectors, vector, self.count, self.sharpness)
        share = weights / weights.sum()
        quality, tokens = self.effects.at(
            float(share @ index.levels[near]), float(share @ index.log_levels[near])
        )
        codes = index.quality[near]
        quality = _leaned(weights, codes != MISSING, codes * QUALITY_STEP, quality, self.leaning)
        codes = index.log_tokens[near]
        lengths = np.exp(codes * LOG_TOKENS_STEP)
        return quality, _leaned(weights, codes != MISSING, lengths, tokens, self.leaning)


def _nearest(
    directions: np.ndarray, vector: np.ndarray, count: int, sharpness: float
) -> tuple[np.ndarray, np.ndarray]:
    """(the `count` directions that are most similar by cosine, exp(`sharpness` x cosine) of each relative to the best)."""
    likeness = directions @ vector[: directions.shape[1]]
    count = min(count, len(likeness))
    near = np.argpartition(-likeness, count - 1)[:count]
    return near, np.exp(sharpness * (likeness[near] - likeness[near].max()))


def _leaned(
    weights: np.ndarray, there: np.ndarray, values: np.ndarray, prior: np.ndarray, leaning: float
) -> np.ndarray:
    """(H,) means of the known (N, H) values, drawn towards the prior; the prior if there are none."""
    mass = weights @ there
    lean = np.where(np.isnan(prior), 0.0, max(leaning, 1e-9))
    total = weights @ np.where(there, values, 0.0) + lean * np.nan_to_num(prior)
    whole = mass + lean
    return np.where(whole > 0.0, total / np.where(whole > 0.0, whole, 1.0), np.nan)


@dataclass(frozen=True, slots=True)
class Clusters:
    """Means of the `nearest` clusters, each weighing exp(`sharpness` x cosine) (Avengers-Pro). `quality` (K, H);
    `tokens` (K, H), NaN where unknown."""

    centres: np.ndarray
    quality: np.ndarray
    tokens: np.ndarray
    nearest: int
    sharpness: float

    def __call__(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        near, weights = _nearest(self.centres, vector, self.nearest, self.sharpness)
        weights /= weights.sum()
        return weights @ self.quality[near], weights @ self.tokens[near]


@dataclass(frozen=True, slots=True)
class Linear:
    """Log-odds of quality and log length, each linear in the vector: (X, H) and (H,). `spread` as in `Effects`; `low`
    and `high` (H,) bound the log length; NaN where unknown."""

    quality: np.ndarray
    quality_bias: np.ndarray
    length: np.ndarray
    length_bias: np.ndarray
    spread: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __call__(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return sigmoid(vector @ self.quality + self.quality_bias), self.tokens(vector)

    def tokens(self, vector: np.ndarray) -> np.ndarray:
        found = vector @ self.length + self.length_bias
        return np.asarray(np.exp(np.minimum(np.maximum(found, self.low), self.high) + self.spread))


@dataclass(frozen=True, slots=True)
class TwoHeads:
    """ECCOS-T: a shared hidden layer, and for each model a capability and a distribution over B buckets of length,
    whose means are `bucket_tokens` (H, B), NaN where unknown. `out` is (N, H x (1 + B))."""

    hidden: np.ndarray
    hidden_bias: np.ndarray
    out: np.ndarray
    out_bias: np.ndarray
    bucket_tokens: np.ndarray

    def __call__(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        heads, buckets = self.bucket_tokens.shape
        found = np.maximum(vector @ self.hidden + self.hidden_bias, 0.0) @ self.out + self.out_bias
        logits = found[heads:].reshape(heads, buckets)
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        return sigmoid(found[:heads]), (share * self.bucket_tokens).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Factorised:
    """RouteLLM's matrix factorisation for K models: delta_m = w . (v_m * W e), with w folded into the models' vectors
    `models` (H, R), and W `projection` (X, R). The quality is sigmoid(delta), so that of two models one wins with
    sigmoid(difference of log-odds). It has no lengths: those are `lengths`'."""

    projection: np.ndarray
    models: np.ndarray
    bias: np.ndarray
    lengths: Linear

    def __call__(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return sigmoid(self.models @ (vector @ self.projection) + self.bias), self.lengths.tokens(vector)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The sigmoid, cut to the range of every estimate."""
    chance = 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(logits, -30.0), 30.0)))
    return np.asarray(np.minimum(np.maximum(chance, _LEAST_QUALITY), _MOST_QUALITY))


def coded(values: np.ndarray, step: float) -> np.ndarray:
    """Values from 0 on as codes of 8 bits, NaN as MISSING."""
    codes = np.clip(np.rint(np.nan_to_num(values) / step), 0, MISSING - 1)
    return np.where(np.isnan(values), MISSING, codes).astype(np.uint8)
