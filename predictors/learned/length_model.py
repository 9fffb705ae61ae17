"""The length of each model's answer to a prompt: a distribution over the bins of `predictors.kernels.length_bins`.

The network is `predictors.kernels.reference.length_network`. An unknown model is served as a member of its family, and an
unknown family as a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from predictors.kernels import LengthFleet, LengthNetwork
from predictors.kernels.length_bins import EDGES
from predictors.kernels.reference.length_network import COMPONENTS, FREQUENT, PATCH
from predictors.learned.artifact import Arrays, Artifact, ArtifactError, sizes
from predictors.learned.names import model_key
from predictors.learned.text import COUNTS, TEXT_FEATURES
from router.core.types import PromptFeatures

#: What an artifact must have been made with.
LENGTH_FEATURES: tuple[str, ...] = (TEXT_FEATURES, "word-pairs-18bit-1", "random-features-1", *COUNTS)

#: The number of sets of models whose embeddings are cached.
_FLEETS = 256

#: The arrays of an artifact: types of values and dimensions (G known grams, W known words, F families; g, w, f the same and an
#: unknown one; M models; K factors, k the same and a norm; I counts, N = I + K; R random features; E a word, P a patch of words,
#: Q a step, H hidden units, A their gates; D dense units, T = 2 H + D; U a prompt, V a model, X both mixed).
_ARRAYS: Arrays = {
    "grams": ("iu", "G"), "gram_table": ("f", "gk"), "random_weight": ("f", "IR"), "random_bias": ("f", "R"),
    "random_table": ("f", "RK"), "words": ("iu", "W"), "word_table": ("f", "wE"), "input_mean": ("f", "N"),
    "input_scale": ("f", "N"), "patch_weight": ("f", "PQ"), "patch_bias": ("f", "Q"), "lstm_input": ("f", "QA"),
    "lstm_state": ("f", "HA"), "lstm_bias": ("f", "A"), "dense_weight": ("f", "ND"), "dense_bias": ("f", "D"),
    "trunk_weight": ("f", "TU"), "trunk_bias": ("f", "U"), "skip_weight": ("f", "KU"), "skip_bias": ("f", "U"),
    "level_weight": ("f", ("V", 1)), "level_bias": ("f", (1,)), "tilt_weight": ("f", "VU"), "tilt_bias": ("f", "U"),
    "mix_prompt": ("f", "UX"), "mix_model": ("f", "VX"), "mix_bias": ("f", "X"), "out_weight": ("f", ("X", 3 * COMPONENTS)),
    "out_bias": ("f", (3 * COMPONENTS,)), "models": ("U", "M"), "model_table": ("f", "MV"), "model_spread": ("f", "M"),
    "families": ("U", "F"), "family_table": ("f", "fV"), "family_spread": ("f", "f"), "familiar": ("f", (2,)),
}  # fmt: skip

#: The arrays that are read for each new set of models; the network has taken what it needs of the others.
_EMBEDDINGS = ("model_table", "model_spread", "family_table", "family_spread")


class LengthModel:
    """A trained length predictor; see the module's docstring."""

    features = LENGTH_FEATURES

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._network = LengthNetwork(arrays)
        self._arrays = {name: arrays[name] for name in _EMBEDDINGS}
        self._models = {str(key): row for row, key in enumerate(arrays["models"])}
        # The last row of the family table is that of an unknown family.
        self._families = {str(key): row for row, key in enumerate(arrays["families"])}
        self._fleet = lru_cache(_FLEETS)(self._fleet_of)

    @classmethod
    def load(cls, artifact: Artifact) -> LengthModel:
        """Raises ArtifactError for arrays that are missing or do not fit together."""
        of = sizes(artifact, _ARRAYS)
        wanted = {
            "g": of["G"] + 1, "k": of["K"] + 1, "w": of["W"] + 1, "f": of["F"] + 1, "I": len(COUNTS) + FREQUENT,
            "N": of["I"] + of["K"], "P": PATCH * of["E"], "A": 4 * of["H"], "T": 2 * of["H"] + of["D"],
        }  # fmt: skip
        if any(of[name] != size for name, size in wanted.items()):
            raise ArtifactError("a length artifact whose arrays do not fit each other")
        model = cls(artifact.arrays)
        probe = PromptFeatures(tuple(range(PATCH)), (1,), (1,) * len(COUNTS))
        if not np.isfinite(model.shares(probe, [("", None)])).all():
            raise ArtifactError("a length artifact whose arrays give no numbers")
        return model

    def shares(self, features: PromptFeatures, models: Sequence[tuple[str, str | None]]) -> np.ndarray:
        """(len(models), bins) shares of the length bins for each (model, family). Rows sum to 1, and all shares are
        above 0."""
        return self._network.shares(features, self._fleet(tuple(models)))

    def _fleet_of(self, models: tuple[tuple[str, str | None], ...]) -> LengthFleet:
        of = self._arrays
        tables, spreads = [], []
        for name, family in models:
            kind, row = "model", self._models.get(model_key(name))
            if row is None:
                kind, row = "family", -1 if family is None else self._families.get(family, -1)
            tables.append(of[f"{kind}_table"][row])
            spreads.append(of[f"{kind}_spread"][row])
        return self._network.fleet(np.array(tables), np.array(spreads))


def quantiles(shares: np.ndarray, probability: float) -> np.ndarray:
    """(rows,) lengths in tokens that are not exceeded with the given probability, for `shares` (rows, bins). Within a
    bin as `predictors.kernels.reference.lengths.LengthTable.quantile`."""
    below = np.concatenate((np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)), axis=1)
    at = np.clip((below <= probability).sum(axis=1) - 1, 0, shares.shape[1] - 1)
    row = np.arange(len(shares))
    inside = np.clip((probability - below[row, at]) / np.maximum(shares[row, at], 1e-300), 0.0, 1.0)
    edges = np.array(EDGES)
    found: np.ndarray = edges[at] + inside * (edges[at + 1] - edges[at])
    return found
