"""Online calibration of the quantiles of predicted times.

Each quantile has an offset. The offset moves up a little with every actual value above the quantile and down with every
one below, in proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID
Control, arXiv 2307.16895; Gibbs & Candes, arXiv 2106.00072). So in the long run the right share lies below, whatever is
predicted. The step is small, since the predictions follow their instance by themselves; larger steps chase spells of load.

Actual values must be learned in order of dispatch, each as soon as it is known or overdue: the values that come first
are the quick ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictors.kernels.levels import TAUS

#: The largest part of a spread that an offset moves by.
STEP = 0.01
#: By quantile, the steps after an actual value at or below it, and above it.
_STEPS = [(STEP * (tau - 1.0), STEP * tau) for tau in TAUS]


class Offsets:
    """Offsets of the quantiles of one time (TTFT or TPOT), shared by all instances of one kind."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [0.0] * len(TAUS)

    def learn(self, predicted: Sequence[float], actual: float) -> None:
        """Learn from `actual`. The first values of `predicted` are the quantiles that served. For an overdue request, pass any
        value larger than the quantiles that it has exceeded."""
        values = self.values
        for at, (down, up) in enumerate(_STEPS):
            values[at] += down if actual <= predicted[at] else up
