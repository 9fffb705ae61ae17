"""The vector of a prompt: its words and pairs of words, weighted by TF-IDF and projected to a short
vector (latent semantic analysis).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from router.core.types import PromptFeatures

#: The number of `PromptFeatures.counts`.
COUNTS = 8
WORDS = 1 << 16
PAIRS = 1 << 20


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
        pairs %= PAIRS
        pairs += WORDS
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
    """`ids` (G,) are the known grams, and `idf` (G,) their weights. `table` (G, D) is what each adds to the
    vector, in whole numbers of `step` (G,); `lexicon` (G, L) and `lexicon_step` (G,) are the same for its effect on
    quality. `unknown_idf` is that of an unknown gram. Raises IndexError for an id that no gram has, TypeError for whole
    numbers of more than one byte."""

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
        if table.dtype != np.int8 or lexicon.dtype != np.int8:
            raise TypeError("whole numbers of more than one byte")
        if len(ids) and not 0 <= ids.min() <= ids.max() < WORDS + PAIRS:
            raise IndexError("an id that no gram has")
        # In the order of their ids, as they are found. A table of all ids would be some megabytes, most of them unknown.
        order = np.argsort(ids)
        self.ids, self.idf, self.unknown_idf = ids[order], idf[order], unknown_idf
        self.table, self.step = table[order], step[order]
        self.lexicon, self.lexicon_step = lexicon[order], lexicon_step[order]

    def vector(self, features: PromptFeatures) -> np.ndarray:
        """(D + counts + 1 + L,) float32: a direction of length 1 (zeros where nothing is known), the counts, the share
        of the prompt's weight that the direction stands for, in [0, 1], and the lexicon's scores."""
        size = self.table.shape[1]
        first_score = size + COUNTS + 1
        out = np.zeros(first_score + self.lexicon.shape[1], dtype=np.float32)
        out[size : first_score - 1] = count_features(features.counts)
        found, counts = np.unique(grams(features), return_counts=True)
        rows = np.minimum(self.ids.searchsorted(found), len(self.ids) - 1)
        known = self.ids[rows] == found
        if not known.any():
            return out
        weights = (1.0 + np.log(counts.astype(np.float32))) * np.where(
            known, self.idf[rows], np.float32(self.unknown_idf)
        )
        rows, of_known = rows[known], weights[known]
        projected = (of_known * self.step[rows]) @ self.table[rows].astype(np.float32)
        scores = (of_known * self.lexicon_step[rows]) @ self.lexicon[rows].astype(np.float32)
        length = float(projected @ projected) ** 0.5
        if length > 0.0:
            np.divide(projected, length, out=out[:size])
            out[first_score - 1] = min(length / float(weights @ weights) ** 0.5, 1.0)
        np.divide(scores, float(of_known @ of_known) ** 0.5, out=out[first_score:])
        return out
