"""The artifact of kind "text", and the estimators in it by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import isnan

import numpy as np

from predictors.learned.artifact import Arrays, Artifact, ArtifactError, sizes
from predictors.learned.names import model_key
from predictors.learned.relevance import RELEVANCE_FEATURES, encoder_of
from predictors.learned.text import COUNTS
from predictors.learned.text_only.estimators import Estimator, estimators_of
from router.core.interfaces import TextEstimates, TextEstimator
from router.core.types import PromptFeatures

#: The prompt is encoded as for relevance.
TEXT_ONLY_FEATURES = RELEVANCE_FEATURES
#: The number of sets of models whose places are cached.
_FLEETS = 64


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
