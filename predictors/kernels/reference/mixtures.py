"""How much each of several predictions of one time is heard: by its own record.

At each decision `EXPERTS` predict the quantiles of one log error. Their weighted mean serves, quantile by quantile. With each
actual value the weight of an expert is multiplied by exp(-RATE x its pinball loss / the running mean loss of all), and then
`SHARE` of all weights is spread anew as in `PRIOR` (exponential weights with fixed share: Herbster & Warmuth, Tracking the
Best Expert, Machine Learning 32, 1998). So an expert that was wrong for long is heard again soon after it is right.

The network and the trees err differently, so their mean is more accurate than either, and both start with the same weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from predictors.kernels.levels import TAUS

EXPERTS = ("physical", "network", "trees")
#: Weights before anything is observed.
PRIOR = (0.1, 0.45, 0.45)
RATE, SHARE = 0.3, 0.02
#: Observations over which the mean loss averages, and its least value: a smaller difference shows nothing.
MEMORY, LEAST_LOSS = 50, 1e-3


class Mixture:
    """The weights of the experts for one time (TTFT or TPOT) at one instance and model."""

    __slots__ = ("_loss", "_observed", "weights")

    def __init__(self) -> None:
        self.weights = PRIOR
        self._loss = 0.0
        self._observed = 0

    def learn(self, quantiles: Sequence[float], actual: float) -> None:
        """Learn from `actual`, for which `quantiles` were predicted at TAUS: what served, and then each expert's, one after
        another."""
        if len(quantiles) != (1 + len(EXPERTS)) * len(TAUS):
            raise ValueError("quantiles of other experts")
        losses = []
        for expert in range(1, 1 + len(EXPERTS)):
            loss = 0.0
            for at, tau in enumerate(TAUS):
                by = actual - quantiles[expert * len(TAUS) + at]
                loss += tau * by if by > 0.0 else (tau - 1.0) * by
            losses.append(loss / len(TAUS))
        self._observed += 1
        self._loss += (sum(losses) / len(losses) - self._loss) / min(self._observed, MEMORY)
        rate, least = RATE / max(self._loss, LEAST_LOSS), min(losses)
        heard = [
            weight * exp(-rate * (loss - least)) for weight, loss in zip(self.weights, losses, strict=True)
        ]
        kept = (1.0 - SHARE) / sum(heard)
        first, second, third = (
            kept * weight + SHARE * prior for weight, prior in zip(heard, PRIOR, strict=True)
        )
        self.weights = first, second, third
