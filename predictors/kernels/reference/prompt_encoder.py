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
    quality. `unknown_idf` is that of an unknown gram."""

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
        self.unknown = len(ids)
        adds = np.concatenate([table * step[:, None], lexicon * lexicon_step[:, None]], axis=1)
        self.adds = np.concatenate([adds, np.zeros_like(adds[:1])]).astype(np.float32)
        self.known_idf = np.append(idf, unknown_idf).astype(np.float32)
        self.rows = np.full(WORDS + PAIRS, self.unknown, dtype=np.int32)
        self.rows[ids] = np.arange(len(ids))

    def vector(self, features: PromptFeatures) -> np.ndarray:
        """(D + counts + 1 + L,) float32: a direction of length 1 (zeros where nothing is known), the counts, the share
        of the prompt's weight that the direction stands for, in [0, 1], and the lexicon's scores."""
        size = self.table.shape[1]
        first_score = size + COUNTS + 1
        out = np.zeros(COUNTS + 1 + self.adds.shape[1], dtype=np.float32)
        out[size : first_score - 1] = count_features(features.counts)
        rows, times = self._counted(grams(features))
        weights = (1.0 + np.log(times)) * self.known_idf[rows]
        known = weights[rows != self.unknown]
        if not len(known):
            return out
        added = weights @ self.adds[rows]
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
        return self.rows[found[starts[:-1]]], (starts[1:] - starts[:-1]).astype(np.float32)
