"""The expected quality of each model's answer to a prompt, from the prompt's hashed words alone.

A prompt's words and pairs of words are weighed by how telling they are (TF-IDF) and projected to a short vector (latent
semantic analysis). Four experts predict from it:

- a small network on that vector, shared by all models;
- prototypes: centres of similar prompts, with the quality that the models reached there;
- a lexicon: what single words and pairs show;
- tasks: how likely the prompt belongs to each, with the quality that the models reached there.

Each expert predicts only how far a model's quality *departs* from its overall mean, in log-odds. Training weighs these
departures by what held on prompts that the experts had not seen (`predictors.training.relevance`). They fade out where
a prompt is unlike all training data.

Qualities are comparable only where they were measured alike: a win rate of 0.5 does not mean that half of the answers
were correct. Each source and kind of quality is a scale, with an estimate (head) of its own for each model. A fleet is
judged on the scale that knows most of its models. A model that only another scale knows is moved over by the difference
of the two scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from predictors.learned.artifact import Artifact, ArtifactError, sizes
from predictors.learned.names import model_key
from predictors.learned.text import COUNTS, HEAD_TOKENS, TAIL_TOKENS, TEXT_FEATURES
from router.core.types import PromptFeatures

RELEVANCE_FEATURES: tuple[str, ...] = (
    TEXT_FEATURES,
    "words-and-pairs-1",
    f"{HEAD_TOKENS}+{TAIL_TOKENS}",
    *COUNTS,
)

#: The weight of a prototype falls by this for each unit of cosine below the nearest one's.
SHARPNESS = 20.0
#: With this many prompts near it, a prototype's departure counts half.
HALF_EVIDENCE = 5.0
_WORDS = 1 << 16
_PAIRS = 1 << 20
#: Sets of models whose parts are cached.
_FLEETS = 64


def grams(features: PromptFeatures) -> np.ndarray:
    """Ids of a prompt's words and of its pairs of neighbouring words, with repeats; int64 in [0, 2**16 + 2**20)."""
    words = features.head + features.tail
    count = len(words)
    found = np.empty(max(2 * count - 1, 0), dtype=np.int64)
    found[:count] = words
    if count > 1:
        pairs = found[count:]
        np.multiply(found[1:count], 2654435761, out=pairs)
        pairs += found[: count - 1] * 40503
        pairs += 12345
        pairs %= _PAIRS
        pairs += _WORDS
    return found


def count_features(counts: Sequence[int]) -> list[float]:
    """`PromptFeatures.counts` as numbers of similar size: logarithms of lengths, shares of kinds of characters."""
    size, lines, words, digits, signs, capitals, not_ascii, questions = counts
    read = min(max(size, 1), 3072) / 10
    return [
        log(max(size, 1)),
        log(max(lines, 1)),
        log(max(words, 1)),
        digits / read,
        signs / read,
        capitals / read,
        not_ascii / read,
        min(questions, 5),
    ]


class Encoder:
    """`ids` (G,) are the known grams, and `idf` (G,) their weights. `table` (G, D) is what each adds to the vector, in
    whole numbers of `step` (G,); `lexicon` (G, L) and `lexicon_step` (G,) are the same for its effect on quality.
    `unknown_idf` is that of an unknown gram."""

    def __init__(
        self,
        ids: np.ndarray,
        idf: np.ndarray,
        table: np.ndarray,
        step: np.ndarray,
        lexicon: np.ndarray,
        lexicon_step: np.ndarray,
        unknown_idf: float,
    ) -> None:
        self.ids, self.idf, self.table, self.step, self.unknown_idf = ids, idf, table, step, unknown_idf
        # Real numbers in memory, and one more row: the unknown gram, which adds nothing.
        self._unknown = len(ids)
        adds = np.concatenate([table * step[:, None], lexicon * lexicon_step[:, None]], axis=1)
        self._adds = np.concatenate([adds, np.zeros_like(adds[:1])]).astype(np.float32)
        self._idf = np.append(idf, unknown_idf).astype(np.float32)
        self._row = np.full(_WORDS + _PAIRS, self._unknown, dtype=np.int32)
        self._row[ids] = np.arange(len(ids))

    def vector(self, features: PromptFeatures) -> np.ndarray:
        """(D + counts + 1 + L,) float32: a direction of length 1 (zeros where nothing is known), the counts, the share
        of the prompt's weight that the direction stands for, in [0, 1], and the lexicon's scores."""
        size = self.table.shape[1]
        first_score = size + len(COUNTS) + 1
        out = np.zeros(len(COUNTS) + 1 + self._adds.shape[1], dtype=np.float32)
        out[size : first_score - 1] = count_features(features.counts)
        rows, times = self._counted(grams(features))
        weights = (1.0 + np.log(times)) * self._idf[rows]
        known = weights[rows != self._unknown]
        if not len(known):
            return out
        added = weights @ self._adds[rows]
        projected = added[:size]
        length = float(projected @ projected) ** 0.5
        if length > 0.0:
            np.divide(projected, length, out=out[:size])
            out[first_score - 1] = min(length / float(weights @ weights) ** 0.5, 1.0)
        np.divide(added[size:], float(known @ known) ** 0.5, out=out[first_score:])
        return out

    def _counted(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row of each different gram, float32 count of it): np.unique in half its time."""
        found.sort()
        changes = np.empty(len(found) + 1, dtype=np.bool_)
        changes[0] = changes[-1] = True
        np.not_equal(found[1:], found[:-1], out=changes[1:-1])
        starts = changes.nonzero()[0]
        return self._row[found[starts[:-1]]], (starts[1:] - starts[:-1]).astype(np.float32)


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
        trust = (most * float(vector[size + len(COUNTS)]) - low) / (high - low)
        return weights, weights @ self.counts, min(max(trust, 0.0), 1.0), nearest


@dataclass(frozen=True, slots=True)
class _Option:
    """One scale on which a fleet may be judged, with the arrays of its M known models that a decision needs."""

    scale: int
    places: np.ndarray  # of known models within the fleet
    scales: np.ndarray  # of their heads
    out: np.ndarray  # (M, O + T)
    bias: np.ndarray
    departures: np.ndarray  # (M, K), times the prompts of the head's scale near the prototype
    prior: np.ndarray
    shifts: np.ndarray  # what moves each over to the option's scale


class RelevanceModel:
    """A trained relevance model. Several threads may use it at once."""

    def __init__(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.name = name
        real = {key: _floats(value) for key, value in arrays.items()}
        self.encoder = Encoder(
            arrays["gram_ids"].astype(np.int64),
            real["gram_idf"],
            arrays["gram_table"],
            real["gram_step"],
            arrays["lexicon"],
            real["lexicon_step"],
            float(arrays["unknown_idf"]),
        )
        low, high = real["near"].tolist()
        self.prototypes = Prototypes(real["centres"], real["centre_counts"], (low, high))
        self._clusters = arrays["centre_clusters"]
        # The network and the tasks side by side share one product each way.
        self._units = len(real["hidden_bias"])
        self._given = np.concatenate([real["hidden"], real["task_weights"]], axis=1)
        self._given_bias = np.concatenate([real["hidden_bias"], real["task_bias"]])
        self._out = np.ascontiguousarray(np.concatenate([real["out"], real["task_departures"]]).T)
        self._out_bias = real["out_bias"]
        self._departures = np.ascontiguousarray(real["departures"].T)
        self._prior = real["head_prior"]
        self._rows = arrays["head_rows"]
        self._scale = arrays["head_scale"].astype(np.int64)
        self._shift = real["scale_shift"]
        self._names: list[str] = arrays["head_names"].tolist()
        self._heads: dict[str, list[int]] = {}
        for head, model in enumerate(self._names):
            self._heads.setdefault(model_key(model), []).append(head)
        self._fleets: dict[tuple[str, ...], list[_Option]] = {}

    @classmethod
    def load(cls, artifact: Artifact) -> RelevanceModel:
        """Raises ArtifactError for an artifact of another kind, or whose arrays are missing or do not fit."""
        _check(artifact)
        return cls(artifact.name, artifact.arrays)

    def knows(self, model: str) -> bool:
        """Whether there is an estimate for this model, by its name or its key (`predictors.learned.names`)."""
        return bool(self._heads_of(model))

    def quality(
        self, features: PromptFeatures, models: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, int, float]:
        """(mean quality in [0, 1] by model, its standard deviation, index of the prompt's cluster, trust in [0, 1] that
        the prompt is like the training data); NaN for unknown models. The deviation is of the mean, not of a single
        answer."""
        vector = self.encoder.vector(features)
        weights, near_by, trust, nearest = self.prototypes.nearness(vector)
        cluster = int(self._clusters[nearest])
        mean = np.full(len(models), np.nan)
        deviation = np.full(len(models), np.nan)
        options = self._options(tuple(models))
        if options:
            option = max(options, key=lambda each: near_by[each.scale])
            near = np.maximum(near_by[option.scales], 1e-9)
            first_score, units = len(self._given), self._units
            found = vector[:first_score] @ self._given + self._given_bias
            task = np.exp(found[units:] - found[units:].max())
            task /= task.sum()
            said = np.concatenate([np.maximum(found[:units], 0.0), vector[first_score:], task])
            departure = option.out @ said + option.bias
            departure += option.departures @ weights / near
            departure *= trust * near / (near + HALF_EVIDENCE)
            quality = 1.0 / (1.0 + np.exp(-(option.prior + departure + option.shifts)))
            mean[option.places] = quality
            deviation[option.places] = np.sqrt(quality * (1.0 - quality) / (trust * near + 2.0))
        return mean, deviation, cluster, trust

    def _heads_of(self, model: str) -> list[int]:
        return self._heads.get(model_key(model), [])

    def _options(self, models: tuple[str, ...]) -> list[_Option]:
        """The scales that know most of these models, each with a head for every model that any scale knows."""
        found = self._fleets.get(models)
        if found is None:
            if len(self._fleets) >= _FLEETS:
                self._fleets.clear()
            found = self._fleets[models] = self._work_out(models)
        return found

    def _work_out(self, models: tuple[str, ...]) -> list[_Option]:
        found = [self._heads_of(model) for model in models]
        known = [place for place, heads in enumerate(found) if heads]
        if not known:
            return []
        scales_of = [{int(self._scale[head]) for head in found[place]} for place in known]
        by_scale = [sum(scale in there for there in scales_of) for scale in range(len(self._shift))]
        options = []
        for scale, covered in enumerate(by_scale):
            if covered < max(by_scale):
                continue
            heads = np.array([self._chosen(models[place], found[place], scale, by_scale) for place in known])
            scales = self._scale[heads]
            options.append(
                _Option(
                    scale,
                    np.array(known),
                    scales,
                    self._out[heads],
                    self._out_bias[heads],
                    self._departures[heads] * self.prototypes.counts.T[scales],
                    self._prior[heads],
                    self._shift[scales] - self._shift[scale],
                )
            )
        return options

    def _chosen(self, model: str, heads: list[int], scale: int, by_scale: list[int]) -> int:
        """One of a model's heads: on this scale, else on the scale that knows most of the fleet. Of several versions,
        the one with exactly this name, else the one with most answers."""
        name = exact_name(model)

        def fits(head: int) -> tuple[bool, int, bool, int]:
            on = int(self._scale[head])
            return on == scale, by_scale[on], self._names[head] == name, int(self._rows[head])

        return max(heads, key=fits)


def exact_name(model: str) -> str:
    """A model's name in the form of the heads: lower case, without its organisation. Versions keep their dates."""
    return model.rsplit("/", 1)[-1].lower()


def _floats(array: np.ndarray) -> np.ndarray:
    """Half floats are only for the file; other types stay."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


#: Arrays of an artifact: type of numbers and dimensions (G grams, D directions, L scores, X = D + counts + 1, N hidden
#: units, O = N + L, H heads, K prototypes, S scales, T tasks).
_ARRAYS = {
    "gram_ids": ("iu", "G"),
    "gram_idf": ("f", "G"),
    "gram_table": ("i", "GD"),
    "gram_step": ("f", "G"),
    "lexicon": ("i", "GL"),
    "lexicon_step": ("f", "G"),
    "unknown_idf": ("f", ""),
    "hidden": ("f", "XN"),
    "hidden_bias": ("f", "N"),
    "out": ("f", "OH"),
    "out_bias": ("f", "H"),
    "task_weights": ("f", "XT"),
    "task_bias": ("f", "T"),
    "task_departures": ("f", "TH"),
    "centres": ("f", "KD"),
    "centre_counts": ("f", "KS"),
    "centre_clusters": ("iu", "K"),
    "departures": ("f", "KH"),
    "near": ("f", "2"),
    "head_names": ("U", "H"),
    "head_scale": ("iu", "H"),
    "head_rows": ("iu", "H"),
    "head_prior": ("f", "H"),
    "scale_names": ("U", "S"),
    "scale_shift": ("f", "S"),
}


def _check(artifact: Artifact) -> None:
    found = sizes(artifact, "relevance", _ARRAYS)
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
