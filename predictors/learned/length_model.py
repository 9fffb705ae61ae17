"""The length of each model's answer to a prompt: a distribution over the bins of `predictors.kernels.length_bins`.

The network is `predictors.kernels.reference.length_network`. An unknown model is served as a member of its family, and an
unknown family as a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictors.kernels import LengthFleet, LengthNetwork
from predictors.kernels.length_bins import EDGES
from predictors.kernels.reference.length_network import PATCH
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.names import model_key
from predictors.learned.text import COUNTS, TEXT_FEATURES
from router.core.types import PromptFeatures

#: What an artifact must have been made with.
LENGTH_FEATURES: tuple[str, ...] = (TEXT_FEATURES, "word-pairs-18bit-1", "random-features-1", *COUNTS)

_FLEETS = 256

#: The number of dimensions of each array of an artifact.
_ARRAYS = {
    "grams": 1, "gram_table": 2, "random_weight": 2, "random_bias": 1, "random_table": 2,
    "words": 1, "word_table": 2, "input_mean": 1, "input_scale": 1,
    "patch_weight": 2, "patch_bias": 1, "lstm_input": 2, "lstm_state": 2, "lstm_bias": 1,
    "dense_weight": 2, "dense_bias": 1, "trunk_weight": 2, "trunk_bias": 1, "skip_weight": 2, "skip_bias": 1,
    "level_weight": 2, "level_bias": 1, "tilt_weight": 2, "tilt_bias": 1,
    "mix_prompt": 2, "mix_model": 2, "mix_bias": 1, "out_weight": 2, "out_bias": 1,
    "models": 1, "model_table": 2, "model_spread": 1,
    "families": 1, "family_table": 2, "family_spread": 1, "familiar": 1,
}  # fmt: skip

#: Tables with a row for each of some names or ids, and the number of further rows.
_TABLES = {"grams": ("gram_table", 1), "words": ("word_table", 1), "models": ("model_table", 0), "families": ("family_table", 1)}  # fmt: skip

#: The arrays that are read for each new set of models; the network has taken what it needs of the others.
_EMBEDDINGS = ("model_table", "model_spread", "family_table", "family_spread")


class LengthModel:
    """A trained length predictor; see the module's docstring."""

    def __init__(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.name = name
        self._network = LengthNetwork(arrays)
        self._arrays = {name: arrays[name] for name in _EMBEDDINGS}
        self._models = {str(key): row for row, key in enumerate(arrays["models"])}
        # The last row of the family table is that of an unknown family.
        self._families = {str(key): row for row, key in enumerate(arrays["families"])}
        self._fleets: dict[tuple[tuple[str, str | None], ...], LengthFleet] = {}

    @classmethod
    def load(cls, artifact: Artifact) -> LengthModel:
        """Raises ArtifactError for arrays that are missing or do not fit together."""
        missing = [name for name in _ARRAYS if name not in artifact.arrays]
        if missing:
            raise ArtifactError(f"length artifact without {', '.join(missing[:5])}")
        wrong = [name for name, dims in _ARRAYS.items() if artifact.arrays[name].ndim != dims]
        if wrong:
            raise ArtifactError(f"length artifact with a misshapen {', '.join(wrong[:5])}")
        uneven = [
            names
            for names, (table, more) in _TABLES.items()
            if len(artifact.arrays[table]) != len(artifact.arrays[names]) + more
        ]
        if uneven:
            raise ArtifactError(f"length artifact whose tables do not fit its {', '.join(uneven)}")
        try:
            model = cls(artifact.name, artifact.arrays)
            probe = PromptFeatures(tuple(range(PATCH)), (1,), (1,) * len(COUNTS))
            for table in ("model_table", "family_table"):
                model._network.fleet(
                    artifact.arrays[table], artifact.arrays[table.replace("table", "spread")]
                )
            found = model.shares(probe, [(str(artifact.arrays["models"][0]), None), ("", None)])
        except (ValueError, IndexError, TypeError) as error:
            raise ArtifactError(f"length artifact whose arrays do not fit together ({error})") from error
        if not np.isfinite(found).all():
            raise ArtifactError("length artifact whose arrays do not fit together")
        return model

    def knows(self, model: str, family: str | None) -> bool:
        """Whether the model or its family was in the training data."""
        return model_key(model) in self._models or family in self._families

    def shares(self, features: PromptFeatures, models: Sequence[tuple[str, str | None]]) -> np.ndarray:
        """(len(models), bins) shares of the length bins for each (model, family). Rows sum to 1, and all shares are
        above 0."""
        return self._network.shares(features, self._fleet(tuple(models)))

    def _fleet(self, models: tuple[tuple[str, str | None], ...]) -> LengthFleet:
        fleet = self._fleets.get(models)
        if fleet is None:
            of = self._arrays
            tables, spreads = [], []
            for name, family in models:
                row = self._models.get(model_key(name))
                if row is not None:
                    tables.append(of["model_table"][row])
                    spreads.append(of["model_spread"][row])
                else:
                    row = self._families.get(family, -1) if family is not None else -1
                    tables.append(of["family_table"][row])
                    spreads.append(of["family_spread"][row])
            fleet = self._network.fleet(np.array(tables), np.array(spreads))
            if len(self._fleets) >= _FLEETS:
                self._fleets.clear()
            self._fleets[models] = fleet
        return fleet


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
