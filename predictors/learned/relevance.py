"""The expected quality of each model's answer to a prompt, from the prompt's hashed words alone.

A prompt's words and pairs of words are weighed by how telling they are (TF-IDF) and projected to a short vector (latent
semantic analysis). Four experts predict from it:

- a small network on that vector, shared by all models;
- prototypes: centres of similar prompts, with the quality that the models reached there;
- a lexicon: what single words and pairs show;
- tasks: how likely the prompt belongs to each, with the quality that the models reached there, partially pooled: a
  difference between models counts as far as it is more than luck (`predictors.training.relevance_pooling`).

Each expert predicts only how far a model's quality *departs* from its overall mean, in log-odds. Training weighs what the
others say beyond the tasks by what held on prompts that the experts had not seen (`predictors.training.relevance`). The
departures fade out where a prompt is unlike all training data.

Qualities are comparable only where they were measured alike: a win rate of 0.5 does not mean that half of the answers
were correct. Each source and kind of quality is a scale, with an estimate (head) of its own for each model. A fleet is
judged on the scale that knows most of its models. A model that only another scale knows is moved over by the difference
of the two scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from predictors.kernels import Encoder, RelevanceHeads, RelevanceNetwork
from predictors.learned.artifact import Arrays, Artifact, ArtifactError, floats, sizes
from predictors.learned.names import model_key, version_of
from predictors.learned.text import COUNTS, HEAD_TOKENS, TAIL_TOKENS, TEXT_FEATURES
from router.core.types import PromptFeatures

RELEVANCE_FEATURES: tuple[str, ...] = (
    TEXT_FEATURES,
    "words-and-pairs-1",
    f"{HEAD_TOKENS}+{TAIL_TOKENS}",
    *COUNTS,
)

#: The number of sets of models whose heads are cached.
_FLEETS = 64


class RelevanceModel:
    """A trained relevance model. Several threads may use it at once."""

    features = RELEVANCE_FEATURES

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.encoder = encoder_of(arrays)
        self._network = RelevanceNetwork(floats(arrays))
        self._clusters = arrays["centre_clusters"]
        self._rows = arrays["head_rows"]
        self._scale = arrays["head_scale"].astype(np.int64)
        self._scales = len(arrays["scale_shift"])
        self._names: list[str] = arrays["head_names"].tolist()
        self._heads: dict[str, list[int]] = {}
        for head, model in enumerate(self._names):
            self._heads.setdefault(model_key(model), []).append(head)
        self._options = lru_cache(_FLEETS)(self._options_of)

    @classmethod
    def load(cls, artifact: Artifact) -> RelevanceModel:
        """Raises ArtifactError for arrays that are missing or do not fit."""
        _check(artifact)
        return cls(artifact.arrays)

    def knows(self, model: str) -> bool:
        """Whether there is an estimate for this model, by its name or its key (`predictors.learned.names`)."""
        return bool(self._heads_of(model))

    def quality(
        self, features: PromptFeatures, models: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, int, float]:
        """(mean quality in [0, 1] by model, its standard deviation, index of the prompt's cluster, trust in [0, 1] that
        the prompt is like the training data). The deviation is of the mean, not of a single answer. Raises ValueError for
        an unknown model."""
        mean, deviation, nearest, trust = self._network.quality(
            self.encoder.vector(features), self._options(tuple(models))
        )
        return mean, deviation, int(self._clusters[nearest]), trust

    def _heads_of(self, model: str) -> list[int]:
        return self._heads.get(model_key(model), [])

    def _options_of(self, models: tuple[str, ...]) -> list[RelevanceHeads]:
        """The models' heads on each of the scales that know most of them."""
        found = [self._heads_of(model) for model in models]
        if not all(found):
            raise ValueError(f"the relevance model does not know all of {', '.join(models)}")
        scales_of = [{int(self._scale[head]) for head in heads} for heads in found]
        by_scale = [sum(scale in there for there in scales_of) for scale in range(self._scales)]
        options = []
        for scale, covered in enumerate(by_scale):
            if covered < max(by_scale):
                continue
            chosen = [self._chosen(*each, scale, by_scale) for each in zip(models, found, strict=True)]
            options.append(self._network.heads(scale, np.array(chosen, np.int64)))
        return options

    def _chosen(self, model: str, heads: list[int], scale: int, by_scale: list[int]) -> int:
        """One of a model's heads: on this scale, else on the scale that knows most of the fleet. Of several versions,
        the one with exactly this name, else the newest, else the one with most answers."""
        name = exact_name(model)

        def fits(head: int) -> tuple[bool, int, bool, str, int]:
            on, known_as = int(self._scale[head]), self._names[head]
            return on == scale, by_scale[on], known_as == name, version_of(known_as), int(self._rows[head])

        return max(heads, key=fits)


def exact_name(model: str) -> str:
    """A model's name in the form of the heads: lower case, without its organisation. Versions keep their dates."""
    return model.rsplit("/", 1)[-1].lower()


def encoder_of(arrays: Mapping[str, np.ndarray], kind: type[Encoder] = Encoder) -> Encoder:
    """The encoder of an artifact's arrays, which may have no lexicon."""
    grams = len(arrays["gram_ids"])
    return kind(
        arrays["gram_ids"].astype(np.int64),
        arrays["gram_idf"].astype(np.float32),
        arrays["gram_table"],
        arrays["gram_step"].astype(np.float32),
        arrays.get("lexicon", np.zeros((grams, 0), dtype=np.int8)),
        arrays.get("lexicon_step", np.zeros(grams)).astype(np.float32),
        float(arrays["unknown_idf"]),
    )


#: Arrays of an artifact: type of numbers and dimensions (G grams, D directions, L scores, X = D + counts + 1, N hidden
#: units, O = N + L, H heads, K prototypes, S scales, T tasks).
_ARRAYS: Arrays = {
    "gram_ids": ("iu", "G"), "gram_idf": ("f", "G"), "gram_table": ("i", "GD"), "gram_step": ("f", "G"),
    "lexicon": ("i", "GL"), "lexicon_step": ("f", "G"), "unknown_idf": ("f", ""),
    "hidden": ("f", "XN"), "hidden_bias": ("f", "N"), "out": ("f", "OH"), "out_bias": ("f", "H"),
    "task_weights": ("f", "XT"), "task_bias": ("f", "T"), "task_departures": ("f", "TH"),
    "centres": ("f", "KD"), "centre_counts": ("f", "KS"), "centre_clusters": ("iu", "K"), "departures": ("f", "KH"),
    "near": ("f", (2,)), "head_names": ("U", "H"), "head_scale": ("iu", "H"), "head_rows": ("iu", "H"),
    "head_prior": ("f", "H"), "scale_names": ("U", "S"), "scale_shift": ("f", "S"),
}  # fmt: skip


def _check(artifact: Artifact) -> None:
    found = sizes(artifact, _ARRAYS)
    scales = artifact.arrays["head_scale"]
    if (
        found["X"] != found["D"] + len(COUNTS) + 1
        or found["O"] != found["N"] + found["L"]
        or not found["K"]
        or not found["G"]
        or not found["T"]
        or (len(scales) and not 0 <= int(scales.min()) <= int(scales.max()) < found["S"])
        or not artifact.arrays["near"][0] < artifact.arrays["near"][1]
    ):
        raise ArtifactError("a relevance artifact whose arrays do not fit each other")
