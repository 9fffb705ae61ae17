"""One of the distributions that the kernels evaluate together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.kernels.reference.quantiles import Distributions


class Distribution:
    """The distribution of a log error with these quantiles at TAUS."""

    def __init__(self, values: Sequence[float]) -> None:
        self._of = Distributions(np.array([values]))

    def quantile(self, probability: float) -> float:
        return float(self._of.quantiles(np.array([[probability]]))[0, 0])

    def exceed(self, residual: float) -> float:
        return float(self._of.exceed(np.array([residual]))[0])
