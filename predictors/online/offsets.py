"""Online calibration of the latency model's quantiles.

Each quantile has an offset. The offset moves up a little with every actual value above the quantile and down with every
one below, in proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID
Control, arXiv 2307.16895; Gibbs & Candes, arXiv 2106.00072). So in the long run the right share lies below, whatever the
model predicts. The step is small, since the model follows its instance by itself; larger steps chase spells of load.

Actual values must be learned in order of dispatch, each as soon as it is known or overdue: the values that come first
are the quick ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.analytic.quantiles import P50, TAUS

#: The largest part of a spread that an offset moves by.
STEP = 0.01
#: Least spread that offsets are measured in (log seconds).
_LEAST_SPREAD = 0.03
_LOW, _HIGH = TAUS.index(0.1), TAUS.index(0.9)


class Offsets:
    """Offsets of the quantiles of one time (TTFT or TPOT), shared by all instances of one kind."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [0.0] * len(TAUS)

    def learn(self, predicted: Sequence[float], actual: float) -> None:
        """Learn from `actual`, for which the quantiles `predicted` were used. For an overdue request, pass any value
        larger than the quantiles that it has exceeded."""
        values = self.values
        for at, tau in enumerate(TAUS):
            values[at] += STEP * (tau - (actual <= predicted[at]))


def calibrated(predicted: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(..., TAUS): the calibrated quantiles; they do not cross. The offset of a quantile is in units of its distance
    from the median; that of the median is in units of half of the 80 % range."""
    spreads = np.abs(predicted - predicted[..., P50, None])
    spreads[..., P50] = 0.5 * (predicted[..., _HIGH] - predicted[..., _LOW])
    np.maximum(spreads, _LEAST_SPREAD, out=spreads)
    found: np.ndarray = predicted + offsets * spreads
    np.maximum.accumulate(found[..., P50:], axis=-1, out=found[..., P50:])
    np.minimum(found[..., _LOW], found[..., P50], out=found[..., _LOW])
    return found
