"""How much the latency model counts against the physical estimate: by the record of both.

At each decision both predict the quantiles of one log error. Their weighted mean serves, quantile by quantile. With each
actual value the weight of either is multiplied by exp(-RATE x its pinball loss / the running mean loss of both), and then
`SHARE` of all weight is spread anew as at first (exponential weights with fixed share: Herbster & Warmuth, Tracking the
Best Expert, Machine Learning 32, 1998). So what was wrong for long counts again soon after it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from predictors.kernels.levels import TAUS

#: The predictions of one log error, in the order in which their quantiles are kept.
PREDICTIONS = ("served", "physical", "model")
#: The model's weight before anything is observed.
FIRST_WEIGHT = 0.9
#: Losses of neighbours in time are alike. A quicker RATE follows spells of load.
RATE, SHARE = 0.15, 0.01
#: Observations over which the mean loss averages, and its least value: a smaller difference shows nothing.
MEMORY, LEAST_LOSS = 50, 1e-3
#: The log of the largest change of the weights' ratio by one observation.
MOST_CHANGE = 10.0


class ModelWeight:
    """The weight of the latency model, 0 to 1, for one time (TTFT or TPOT) at one instance and model. The physical estimate has
    the rest."""

    __slots__ = ("_loss", "_observed", "value")

    def __init__(self) -> None:
        self.value = FIRST_WEIGHT
        self._loss = 0.0
        self._observed = 0

    def learn(self, quantiles: Sequence[float], actual: float) -> None:
        """Learn from `actual`, for which `quantiles` were predicted at TAUS: those of each of PREDICTIONS, one after another."""
        if len(quantiles) != len(PREDICTIONS) * len(TAUS):
            raise ValueError("quantiles of other predictions")
        physical, model = (_loss(quantiles[at * len(TAUS) : (at + 1) * len(TAUS)], actual) for at in (1, 2))
        self._observed += 1
        self._loss += (0.5 * (physical + model) - self._loss) / min(self._observed, MEMORY)
        change = RATE * (model - physical) / max(self._loss, LEAST_LOSS)
        odds = exp(min(max(change, -MOST_CHANGE), MOST_CHANGE)) * (1.0 - self.value)
        self.value = (1.0 - SHARE) * self.value / (self.value + odds) + SHARE * FIRST_WEIGHT


def _loss(quantiles: Sequence[float], actual: float) -> float:
    """The mean pinball loss of quantiles at TAUS."""
    loss = 0.0
    for predicted, tau in zip(quantiles, TAUS, strict=True):
        by = actual - predicted
        loss += tau * by if by > 0.0 else (tau - 1.0) * by
    return loss / len(TAUS)
