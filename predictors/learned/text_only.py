"""Text-only estimators: the methods of published routers of models, which use only the prompt (NumPy only). Each gives every
known model's quality and output tokens for one encoded prompt.

They are baselines for `predictors.learned.relevance` and the policies built on it. They see only `PromptFeatures`, never text.

Quality and length are first split into `effect of the model + level of the prompt` (in log-odds, and in logarithms of
tokens). An estimator falls back to that sum where a model was not seen on similar prompts. It never falls back to a
quality or a length of 0, which would make an unknown model look cheap.

An estimator is a function of the artifact's arrays (`_ARRAYS` has their dimensions) and a vector of the encoder. Tokens are NaN
where no length of a model is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import isnan

import numpy as np

from predictors.learned.artifact import Arrays, Artifact, ArtifactError, floats, sizes
from predictors.learned.names import model_key
from predictors.learned.relevance import RELEVANCE_FEATURES, encoder_of
from predictors.learned.text import COUNTS
from router.core.interfaces import TextEstimates, TextEstimator
from router.core.types import PromptFeatures

#: The prompt is encoded as for relevance.
TEXT_ONLY_FEATURES = RELEVANCE_FEATURES
#: The number of sets of models whose places are cached.
_FLEETS = 64
#: Codes of the index's qualities and log tokens: 255 is missing, else the value in steps.
MISSING = 255
QUALITY_STEP = 1.0 / 254.0
LOG_TOKENS_STEP = 10.0 / 254.0
#: The range of every estimate.
_LEAST_QUALITY, _MOST_QUALITY = 0.01, 0.99
#: The number of neighbours of ECCOS-R (its paper's k), with equal weights.
_ECCOS_NEIGHBOURS = 16
#: A few answers are not enough for an estimate: the mean counts as this many more.
_ECCOS_LEANING = 2.0
#: Clusters that predict for a prompt, each weighing exp(sharpness x cosine).
_NEAREST_CLUSTERS, _CLUSTER_SHARPNESS = 4, 6.0

ArraysByName = Mapping[str, np.ndarray]
#: (quality, output tokens) of all H heads.
HeadValues = tuple[np.ndarray, np.ndarray]
Estimator = Callable[[np.ndarray], HeadValues]


def estimators_of(arrays: ArraysByName) -> dict[str, Estimator]:
    """The estimators of an artifact, by name."""
    of = _prepared(arrays)
    count, sharpness, leaning = of["knn"].tolist()
    means = of["mean_quality"], of["mean_tokens"]  # as if each model had answered all prompts
    return {
        "mean": lambda _: means,
        "knn": partial(neighbours, of, int(count), sharpness, leaning),
        "clusters": partial(clusters, of, _NEAREST_CLUSTERS, _CLUSTER_SHARPNESS),
        "logistic": partial(linear, of),
        "eccos_t": partial(two_heads, of),
        "eccos_r": partial(neighbours, of, _ECCOS_NEIGHBOURS, 0.0, _ECCOS_LEANING),
        "factorisation": partial(factorised, of),
    }


def _prepared(arrays: ArraysByName) -> dict[str, np.ndarray]:
    """All but the encoder's arrays as numbers, with vectors of length 1 in the index, and NaN, which no file holds, for the
    lengths of heads without any known length."""
    of = floats({name: array for name, array in arrays.items() if not name.startswith("gram_")})
    vectors = of["index"]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    of["index"] = np.ascontiguousarray(vectors, dtype=np.float32)
    without = of["head_lengths"] == 0
    for name in ("effect_log_tokens", "ridge_bias", "mean_tokens", "cluster_tokens"):
        of[name] = np.where(without, np.nan, of[name])
    of["bucket_tokens"] = np.where(without[:, None], np.nan, of["bucket_tokens"])
    return of


def neighbours(
    of: ArraysByName, count: int, sharpness: float, leaning: float, vector: np.ndarray
) -> HeadValues:
    """The mean of the `count` most similar prompts by cosine, weighted by `sharpness` (0: equal weights). The model's
    own mean at such prompts counts as `leaning` more neighbours. A model without values at the neighbours gets only
    that mean."""
    near, weights = _nearest(of["index"], vector, count, sharpness)
    share = weights / weights.sum()
    level, log_level = (float(share @ of[name][near]) for name in ("index_levels", "index_log_levels"))
    quality = sigmoid(of["effect_quality"] + level)
    tokens = np.exp(of["effect_log_tokens"] + log_level + of["spread"])
    codes = of["index_quality"][near]
    quality = _leaned(weights, codes != MISSING, codes * QUALITY_STEP, quality, leaning)
    codes = of["index_log_tokens"][near]
    lengths = np.exp(codes * LOG_TOKENS_STEP)
    return quality, _leaned(weights, codes != MISSING, lengths, tokens, leaning)


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


def clusters(of: ArraysByName, nearest: int, sharpness: float, vector: np.ndarray) -> HeadValues:
    """Means of the `nearest` clusters, each weighing exp(`sharpness` x cosine) (Avengers-Pro)."""
    near, weights = _nearest(of["centres"], vector, nearest, sharpness)
    weights /= weights.sum()
    return weights @ of["cluster_quality"][near], weights @ of["cluster_tokens"][near]


def linear(of: ArraysByName, vector: np.ndarray) -> HeadValues:
    """Log-odds of quality and log length, each linear in the vector. The log length is kept within its bounds."""
    return sigmoid(vector @ of["logistic"] + of["logistic_bias"]), _linear_tokens(of, vector)


def _linear_tokens(of: ArraysByName, vector: np.ndarray) -> np.ndarray:
    found = vector @ of["ridge"] + of["ridge_bias"]
    bounded = np.minimum(np.maximum(found, of["length_low"]), of["length_high"])
    return np.asarray(np.exp(bounded + of["spread"]))


def two_heads(of: ArraysByName, vector: np.ndarray) -> HeadValues:
    """ECCOS-T: a shared hidden layer, and for each model a capability and a distribution over buckets of length, whose
    means are known."""
    heads, buckets = of["bucket_tokens"].shape
    hidden = np.maximum(vector @ of["hidden"] + of["hidden_bias"], 0.0)
    found = hidden @ of["two_heads"] + of["two_heads_bias"]
    logits = found[heads:].reshape(heads, buckets)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    return sigmoid(found[:heads]), (share * of["bucket_tokens"]).sum(axis=1)


def factorised(of: ArraysByName, vector: np.ndarray) -> HeadValues:
    """RouteLLM's matrix factorisation for K models: delta_m = w . (v_m * W e), with w folded into the models' vectors v,
    and W the projection. The quality is sigmoid(delta), so that of two models one wins with sigmoid(difference of
    log-odds). It has no lengths: those are `linear`'s."""
    deltas = of["mf_models"] @ (vector @ of["mf_projection"]) + of["mf_bias"]
    return sigmoid(deltas), _linear_tokens(of, vector)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The sigmoid, cut to the range of every estimate."""
    chance = 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(logits, -30.0), 30.0)))
    return np.asarray(np.minimum(np.maximum(chance, _LEAST_QUALITY), _MOST_QUALITY))


def coded(values: np.ndarray, step: float) -> np.ndarray:
    """Values from 0 on as codes of 8 bits, NaN as MISSING."""
    codes = np.clip(np.rint(np.nan_to_num(values) / step), 0, MISSING - 1)
    return np.where(np.isnan(values), MISSING, codes).astype(np.uint8)


# --- the artifact ---------------------------------------------------------------------------------------
class TextModels:
    """`estimators` by name: "mean" (the same for every prompt), "knn", "clusters", "logistic", "eccos_t", "eccos_r",
    "factorisation". Each takes a prompt's features and models' names. Several threads may use them at once."""

    features = TEXT_ONLY_FEATURES

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.encoder = encoder_of(arrays)
        self._heads = {str(key): head for head, key in enumerate(arrays["head_names"].tolist())}
        self._places = lru_cache(_FLEETS)(self._places_of)
        self.estimators: Mapping[str, TextEstimator] = {
            name: partial(self._estimates, estimate) for name, estimate in estimators_of(arrays).items()
        }

    @classmethod
    def load(cls, artifact: Artifact) -> TextModels:
        """Raises ArtifactError for arrays that are missing or do not fit."""
        check(artifact)
        return cls(artifact.arrays)

    def knows(self, model: str) -> bool:
        """Whether there are estimates for this model, by its key (`predictors.learned.names`)."""
        return model_key(model) in self._heads

    def _estimates(
        self, estimate: Estimator, features: PromptFeatures, models: Sequence[str]
    ) -> TextEstimates:
        """The estimates of models by name."""
        known, heads = self._places(tuple(models))
        quality: list[float | None] = [None] * len(models)
        tokens: list[float | None] = [None] * len(models)
        if known:
            qualities, lengths = estimate(self.encoder.vector(features))
            for place, one, length in zip(
                known, qualities[heads].tolist(), lengths[heads].tolist(), strict=True
            ):
                quality[place] = one
                tokens[place] = None if isnan(length) else length
        return TextEstimates(quality, tokens)

    def _places_of(self, models: tuple[str, ...]) -> tuple[list[int], np.ndarray]:
        """(positions of the known models among these, their heads)."""
        heads = [self._heads.get(model_key(model)) for model in models]
        known = [place for place, head in enumerate(heads) if head is not None]
        return known, np.array([heads[place] for place in known], dtype=np.int64)


#: Arrays of an artifact: type of numbers and dimensions (G grams, D directions, X = D + counts + 1, H models, I prompts
#: of the index, K clusters, N hidden units, B buckets, O = H x (1 + B), R rank).
_ARRAYS: Arrays = {
    "gram_ids": ("iu", "G"), "gram_idf": ("f", "G"), "gram_table": ("i", "GD"), "gram_step": ("f", "G"),
    "unknown_idf": ("f", ""), "head_names": ("U", "H"), "head_rows": ("iu", "H"), "head_lengths": ("iu", "H"),
    "effect_quality": ("f", "H"), "effect_log_tokens": ("f", "H"), "spread": ("f", "H"), "mean_quality": ("f", "H"),
    "mean_tokens": ("f", "H"), "index": ("i", "ID"), "index_quality": ("u", "IH"), "index_log_tokens": ("u", "IH"),
    "index_levels": ("f", "I"), "index_log_levels": ("f", "I"), "knn": ("f", (3,)),
    "centres": ("f", "KD"), "cluster_quality": ("f", "KH"), "cluster_tokens": ("f", "KH"),
    "logistic": ("f", "XH"), "logistic_bias": ("f", "H"), "ridge": ("f", "XH"), "ridge_bias": ("f", "H"),
    "length_low": ("f", "H"), "length_high": ("f", "H"), "hidden": ("f", "XN"), "hidden_bias": ("f", "N"),
    "two_heads": ("f", "NO"), "two_heads_bias": ("f", "O"), "bucket_tokens": ("f", "HB"),
    "mf_projection": ("f", "XR"), "mf_models": ("f", "HR"), "mf_bias": ("f", "H"),
}  # fmt: skip


def check(artifact: Artifact) -> None:
    """Raises ArtifactError for anything but the arrays of text-only estimators."""
    found = sizes(artifact, _ARRAYS)
    if (
        found["X"] != found["D"] + len(COUNTS) + 1
        or found["O"] != found["H"] * (1 + found["B"])
        or not all(found[each] for each in "GHIKB")
        or artifact.arrays["knn"][0] < 1
    ):
        raise ArtifactError("a text artifact whose arrays do not fit each other")
