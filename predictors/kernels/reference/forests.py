"""Two forests of boosted trees over the same rows, one for TTFT and one for TPOT.

Every tree is padded to one depth, so that the children of node n are at 2n + 1 and 2n + 2. All trees take all rows one level
down at a time.
"""

from __future__ import annotations

import numpy as np


class Forests:
    """The arrays for T trees (those of TTFT first) of depth D: `feature` and `threshold` (T, 2^D - 1), `value` (T, 2^D),
    `base` (2,), and `split`, the number of trees of TTFT. Raises ValueError for arrays that are not two forests over rows of
    `width` numbers."""

    def __init__(
        self,
        feature: np.ndarray,
        threshold: np.ndarray,
        value: np.ndarray,
        base: np.ndarray,
        split: int,
        width: int,
    ) -> None:
        trees, nodes = feature.shape
        self._depth = (nodes + 1).bit_length() - 1
        if (
            nodes + 1 != 2**self._depth
            or threshold.shape != (trees, nodes)
            or value.shape != (trees, nodes + 1)
            or base.shape != (2,)
            or not 0 < split < trees
            or not 0 <= feature.min() <= feature.max() < width
        ):
            raise ValueError("arrays that are not two forests")
        self._feature = feature.astype(np.intp).ravel()
        self._threshold = threshold.astype(np.float64).ravel()
        self._value = value.astype(np.float64).ravel()
        self._base = base.astype(np.float64)
        self._split, self._width = split, width
        self._first_node = (np.arange(trees) * nodes)[:, None]
        self._first_leaf = (np.arange(trees) * (nodes + 1) - nodes)[:, None]

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(N, 2): what the forests say of N rows."""
        size, width = rows.shape
        if width != self._width:
            raise ValueError("rows of another size")
        flat = rows.astype(np.float64).ravel()
        first_value = np.arange(size) * width
        node = np.zeros((len(self._first_node), size), np.intp)
        for _ in range(self._depth):
            at = self._first_node + node
            right = flat[self._feature[at] + first_value] > self._threshold[at]
            node += node
            node += 1
            node += right
        values = self._value[self._first_leaf + node]
        split = self._split
        found: np.ndarray = np.stack([values[:split].sum(0), values[split:].sum(0)], axis=1) + self._base
        return found
